"""Settings of inference, without heavy imports, so that the command line is fast."""

import dataclasses

from qac_jax.fields import Checked, option
from qac_jax.hardware import PRECISIONS_MEAN


# What computes a graph that lies in the model's folder (engines.py).
ENGINES = ("openvino", "onnx")
PRECISIONS = ("auto", "fast", "float32", "mixed", "bfloat16", "int8", *ENGINES)
TRUNCATIONS = ("pop_longer", "longest_first", "only_second")
# Those of models/heads.py, which takes seconds to import.
POOLINGS = ("cls", "mean", "max", "lasttoken", "weightedmean", "mean_sqrt_len_tokens")
LIKELIHOODS = ("padded", "sum", "mean")


@dataclasses.dataclass(frozen=True)
class Inference(Checked):
    """How a model is run."""

    precision: str = option(
        "auto",
        f"precision of matrix products ({PRECISIONS_MEAN}; int8: encoders and rerankers of BERT's "
        "family on CPUs, with the extra int8; openvino, onnx: the graph of qac export --form)",
        choices=PRECISIONS,
    )
    batch_tokens: int = option(
        0,
        "tokens per batch and device, padding included (0: by device)",
        at_least=0,
        affects_result=False,
    )
    batch_texts: int = option(
        0, "texts per batch and device (0: by device)", at_least=0, affects_result=False
    )


@dataclasses.dataclass(frozen=True)
class EncoderOptions:
    """Options of an encoder that override those of its folder."""

    title: str = option(
        "",
        "how a title joins its text (default: as in training): marked is title TEXT: text",
        choices=("", "none", "space", "separate", "segments", "marked"),
    )
    pooling: str = option("", "pooling (default: the model's)", choices=("", *POOLINGS))
    normalize: str = option(
        "", "normalise vectors to length 1 (default: as the model does)", choices=("", "yes", "no")
    )
    max_length: int = option(
        0, "maximum length in tokens, special tokens included (0: the model's)"
    )


@dataclasses.dataclass(frozen=True)
class RerankerOptions:
    """How a cross-encoder reads a query together with a passage."""

    max_length: int = option(
        160, "cross-encoder: maximum length of a pair in tokens (0: the model's)"
    )
    truncation: str = option(
        "pop_longer",
        "how a pair that is too long is truncated: the longer text by turns, as Hugging Face does "
        "(longest_first), or the passage alone (only_second)",
        choices=TRUNCATIONS,
    )


@dataclasses.dataclass(frozen=True)
class LikelihoodOptions(Checked):
    """How spans of a document are scored by their likelihood under a T5."""

    likelihood: str = option(
        "padded",
        "plm: the sum of log-probabilities with padding to the longest span (AugTriever), their "
        "sum, which prefers the shortest span, or their mean",
        choices=LIKELIHOODS,
    )
    document_tokens: int = option(192, "plm: tokens of the document, its end included", at_least=2)
    span_tokens: int = option(32, "plm: tokens of a span", at_least=1)


# The defaults of the classes above.
BY_DEVICE = Inference()
AS_IN_FOLDER = EncoderOptions()
USUAL_PAIRS = RerankerOptions()
USUAL_SPANS = LikelihoodOptions()
