"""Grids on lent machines: a bundle travels, slices of minutes train and judge its cells.

    bundle   what needs no trained model is done here, and packed with the code      (`bundling`)
    run      trains and judges on a machine with JAX, Flax, Optax, Orbax, tokenizers (`running`)
    merge    results of any number of slices -> the grid's summary                   (`merging`)

`launch/evidence.sh` calls them. What `run` imports needs no TensorFlow, seqio, ScaNN, gin, NLTK,
grain, array_record, bm25s or pytrec_eval, and no network.
"""
