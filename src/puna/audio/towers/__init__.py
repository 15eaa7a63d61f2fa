"""Audio towers of models that chat, one file per lineage.

Each follows its model's reference. Where llama.cpp (L) shows a model something else:

- Voxtral: no window of silence follows the last one (L: one does if a recording is short).
- Qwen2-Audio: the silence that completes a window is masked, and has no rows (L: it is heard).
- Qwen3-ASR: the last second of frames is completed with zeros before the convolutions, and their results
  beyond the end are left out (L: the convolutions end with the frames). Recordings under half a second are
  completed with silence (not L).
- Granite Speech: logits are divided by their scale, as in L and in transformers before version 5.

Deviations from the reference: the words `Audio 1:` before a recording for Qwen2-Audio are not written (as in
L); one of more than 30 seconds for it or Gemma 4 is read in several windows (as in L) and not cut; one of
more than two minutes for Granite Speech is read in parts, across which its convolutions do not see.
"""
