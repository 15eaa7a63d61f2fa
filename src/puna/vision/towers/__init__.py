"""Vision towers, one file per lineage.

Each follows its model's reference. Where llama.cpp (L) or Ollama (O) show a model something else:

- LLaVA 1.6: rows of padding are dropped, and each line ends with the newline row (not L). LLaVA 1.5 and 1.6
  project the patches after the layer the file means; L runs one layer fewer if the file names none.
- InternVL: a small picture is cut too if its proportions ask for it; of equal grids the larger one is taken
  if there are pixels for half of it. The class token comes first.
- MiniCPM-V: whether a picture is cut depends on its pixels, not on its longer side.
- SmolVLM: no empty line precedes a picture that is not cut.
- Llama 3.2 Vision: tiles are numbered by rows, then columns (O: columns first). Padding patches and tiles
  are masked (not O). Text before the first picture skips cross-attention (not O, transformers). The layers'
  inputs are kept, as in O; transformers keeps outputs. Mean and deviation are CLIP's, as in O.
- Llama 4: up to 16 tiles (O: 14); pictures are enlarged only if they are smaller than a tile.
- Gemma 3n: the token after an image has the tower's own embedding (L: zero).
- Gemma 4: GELU by its tanh (L, O: the quick one), the norm before the projection, and parts of a picture see
  each other only in windowed layers, and not in E2B and E4B.
- Qwen3-VL: an image takes as many positions as its longer side has rows (O: its width).
- LightOnOCR: no tokens are written around an image (L: `<|im_start|>` and `<|im_end|>`), and the norm of the
  projector has the text model's epsilon (L: the tower's).
- PaddleOCR-VL: the projector's GELU is exact (L: by its tanh).
- dots.ocr: the merger's norm has an epsilon of its own (L: the tower's), and its GELU is exact (L: by its
  tanh).
- Kimi K2.5: a small picture is not enlarged, black completes its sides, and the projector's GELU is exact
  (L: by its tanh). `image` and another token precede the rows, as in the published template (not L).
- DeepSeek-OCR: a picture no larger than a tile is not cut (O cuts it).
- Step 3.7: black completes tiles beyond the picture, as in StepFun's own code and L (transformers stretches
  them). A picture of more than 64 tiles is not cut.

Three deviations from the reference: MiniCPM-V's `<image_id>` is not written (as in L); pictures for Qwen3-VL
and 3.5 have at most 2 million pixels unless the file says otherwise (as in O); a picture for LLaVA 1.5 with a
side over 4,096 pixels is reduced before it is padded.
"""
