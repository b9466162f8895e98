"""The peer of `qac bench pretrain`: the same step, plainly, with transformers' BERT layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qac_jax.bench import peer


def step(settings: Any, name: str, batch: Mapping[str, np.ndarray]) -> Callable[[int], None]:
    """Runs N steps of CoT-MAE (MLM decoder) or coCondenser on one batch.

    Words are masked once, beforehand: every n-th position, at no cost for the peer.
    """
    torch = peer.torch(settings.threads)
    transformers = peer.transformers()
    from transformers.models.bert.modeling_bert import BertLayer

    on = peer.device()
    chunks = [
        slice(start, start + (settings.microbatch or settings.pairs))
        for start in range(0, settings.pairs, settings.microbatch or settings.pairs)
    ]
    config = transformers.BertConfig(
        vocab_size=settings.vocabulary,
        hidden_size=settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads(),
        intermediate_size=4 * settings.hidden,
        max_position_embeddings=settings.passage,
        hidden_dropout_prob=settings.dropout,
        attention_probs_dropout_prob=settings.dropout,
    )
    model = transformers.BertForMaskedLM(config).train().to(on)
    head = torch.nn.ModuleList(BertLayer(model.config) for _ in range(2)).train().to(on)
    peer.compiled([*model.bert.encoder.layer, *head])
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, fused=True)

    def text(feature: str, rate: float, rows: slice) -> dict[str, Any]:
        ids = torch.tensor(batch[feature][rows], dtype=torch.long)
        lengths = torch.tensor(batch[f"{feature}_length"][rows])
        width = ids.shape[1]
        count = max(1, round(rate * (width - 2)))  # places computed; those beyond a text weigh 0
        budget = torch.clamp((rate * (lengths - 2)).round(), min=1)
        inner = torch.rand(ids.shape) + 2.0 * (torch.arange(width) >= lengths[:, None] - 1)
        inner[:, 0] = 3.0
        places = inner.argsort(1)[:, :count]
        real = (torch.arange(count) < budget[:, None]).float()
        wanted = ids.gather(1, places)
        masked = ids.scatter(1, places, torch.where(real > 0, 4, wanted))
        seen = (torch.arange(width) < lengths[:, None])[:, None, None, :]
        far = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
        mask = seen[:, 0, 0].long()
        made = {"ids": masked, "mask": mask, "far": far, "places": places, "wanted": wanted,
                "real": real}  # fmt: skip
        return {key: value.to(on) for key, value in made.items()}

    def nll(hidden: Any, of: Mapping[str, Any]) -> Any:
        index = of["places"][..., None].expand(-1, -1, hidden.shape[-1])
        logits = model.cls(hidden.gather(1, index)).flatten(0, 1)
        each = torch.nn.functional.cross_entropy(logits, of["wanted"].flatten(), reduction="none")
        return (each * of["real"].flatten()).sum()

    def through_head(cls: Any, rest: Any, far: Any) -> Any:
        x = torch.cat([cls[:, None], rest[:, 1:]], 1)
        for layer in head:
            x = layer(x, far)
        return x

    def cotmae(rows: slice) -> Callable[[], Any]:
        passage, context = text("passage", 0.30, rows), text("context", 0.45, rows)

        def loss() -> Any:
            hidden = model.bert(passage["ids"], attention_mask=passage["mask"]).last_hidden_state
            embedded = model.bert.embeddings(input_ids=context["ids"])
            decoded = through_head(hidden[:, 0], embedded, context["far"])
            own, other = nll(hidden, passage), nll(decoded, context)
            return own / passage["real"].sum() + other / context["real"].sum()

        return loss

    def cocondenser(rows: slice) -> Callable[[], Any]:
        texts = [text("passage", 0.15, rows), text("context", 0.15, rows)]
        total = sum(of["real"].sum() for of in texts)

        def loss() -> Any:
            vectors, mlm = [], 0.0
            for of in texts:
                out = model.bert(of["ids"], attention_mask=of["mask"], output_hidden_states=True)
                hidden, early = out.last_hidden_state, out.hidden_states[settings.layers // 2]
                mlm = mlm + nll(hidden, of)
                mlm = mlm + nll(through_head(hidden[:, 0], early, of["far"]), of)
                vectors.append(hidden[:, 0])
            every = torch.stack(vectors, 1).flatten(0, 1)
            scores = (every @ every.T).fill_diagonal_(float("-inf"))
            partner = torch.arange(len(every), device=on) ^ 1
            return mlm / total + torch.nn.functional.cross_entropy(scores, partner)

        return loss

    losses = [cotmae(rows) if name == "cotmae" else cocondenser(rows) for rows in chunks]

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            for loss in losses:
                with peer.halved(settings.precision):
                    found = loss() / len(losses)
                found.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        peer.wait()

    return steps
