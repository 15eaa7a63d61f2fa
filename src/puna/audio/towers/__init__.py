"""Audio towers of models that chat, one file per lineage.

Each follows its model's reference. Where llama.cpp (L) shows a model something else:

- Voxtral: no window of silence follows the last one (L: one does if a recording is short).
- Qwen2-Audio: the silence that completes a window is masked, and has no rows (L: it is heard).
- Qwen3-ASR: zeros complete the last second of frames before the convolutions, and their results beyond the
  end are left out (L: kept). Recordings under half a second are completed with silence (not L).
- Granite Speech: logits are divided by their scale, as in L and in transformers before version 5.
- Ultravox: the encoder stops at the end of a recording (L: silence completes 30 seconds, and has rows).
- Qwen2.5-Omni: two seconds are read at once, and no silence after the end (L: 30 seconds, with silence). The
  tokens around images are `<|vision_bos|>` and `<|vision_eos|>` (L: those of Qwen2-VL, as text).
- Qwen3-Omni: the convolutions of a recording under a second end with it (L: zeros complete the second).

Deviations from the reference: the words `Audio 1:` before a recording for Qwen2-Audio are not written (as in
L); one of more than 30 seconds for it, Gemma 3n or Gemma 4, or 300 for Qwen2.5-Omni, is read in further
windows (as in L) and not cut, each between its own tokens for Gemma 3n; one of more than two minutes for
Granite Speech or LFM2-Audio is read in parts that do not hear each other; zeros complete the last row of a
further window for Ultravox as that of a first one.
"""
