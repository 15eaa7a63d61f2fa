"""Settings of towers that no GGUF key carries, and the values that readers assume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from puna.convert.config import Config
from puna.errors import ConversionError, shown

_SIGLIP: Final = {"vision_config.hidden_act": ("gelu_pytorch_tanh",)}
_SILU: Final = {"vision_config.hidden_act": ("silu",)}
_PROJECTED: Final = {"projector_hidden_act": ("gelu",), "vision_feature_select_strategy": ("default",)}
_LAST_LAYER: Final = {"vision_feature_layer": (-1,)}
_PLAIN_ROPE: Final = {"vision_config.rope_parameters.rope_type": ("default", "axial")}
_FRAMES: Final = {
    "vision_config.temporal_patch_size": (2,),
    "vision_config.rope_parameters.rope_theta": (10000,),
}

#: For all towers.
_OF_ALL: Final[dict[str, tuple[Any, ...]]] = {
    **_PLAIN_ROPE,
    **dict.fromkeys(
        ("vision_config.num_channels", "vision_config.in_channels", "vision_config.in_chans"), (3,)
    ),
}
#: For towers by projector type.
_ASSUMED: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    "deepseekocr2": {
        "vision_config.encoder_config.hidden_act": ("silu",),
        "vision_config.encoder_config.use_sliding_window": (False,),
        "vision_config.encoder_config.rope_parameters.rope_type": ("default",),
        "vision_config.sam_config.hidden_act": ("gelu",),
        "vision_config.sam_config.layer_norm_eps": (1e-6,),
        "vision_config.sam_config.use_abs_pos": (True,),
        "vision_config.sam_config.use_rel_pos": (True,),
    },
    "dots_ocr": {
        "vision_config.temporal_patch_size": (1,), "vision_config.is_causal": (False,),
    },
    "gemma3": _SIGLIP,
    "gemma3na": {
        "audio_config.conf_attention_context_left": (13,), "audio_config.conf_attention_context_right": (0,),
        "audio_config.conf_attention_logit_cap": (50.0,), "audio_config.conf_residual_weight": (0.5,),
        "audio_config.conf_reduction_factor": (4,), "audio_config.gradient_clipping": (1e10,),
        "audio_config.rms_norm_eps": (1e-6,), "audio_config.sscp_conv_group_norm_eps": (1e-3,),
        "audio_config.sscp_conv_kernel_size": ([[3, 3], [3, 3]],),
        "audio_config.sscp_conv_stride_size": ([[2, 2], [2, 2]],), "audio_soft_tokens_per_image": (188,),
    },
    "gemma4a": {
        "audio_config.hidden_act": ("silu",), "audio_config.residual_weight": (0.5,),
        "audio_config.attention_chunk_size": (12,), "audio_config.attention_context_left": (13,),
        "audio_config.attention_context_right": (0,), "audio_config.attention_logit_cap": (50.0,),
        "audio_config.attention_invalid_logits_value": (-1e9,), "audio_config.rms_norm_eps": (1e-6,),
        "audio_config.gradient_clipping": (1e10,),
    },
    "gemma4uv": {"vision_config.rms_norm_eps": (1e-6,)},
    "gemma4v": {
        "vision_config.hidden_activation": ("gelu_pytorch_tanh",),
        "vision_config.rope_parameters.rope_theta": (100,),
    },
    "glm4v": {**_SILU, **_FRAMES},
    "granite_speech": {
        "projector_config.model_type": ("blip_2_qformer",), "projector_config.hidden_act": ("gelu",),
        "projector_config.layer_norm_eps": (1e-12,), "projector_config.cross_attention_frequency": (1,),
        "projector_config.use_qformer_text_input": (False,),
    },
    "idefics3": _SIGLIP,
    "internvl": {"vision_config.hidden_act": ("gelu",), **_PROJECTED, **_LAST_LAYER},
    "kimik25": {
        "vision_config.hidden_act": ("gelu_pytorch_tanh",), "vision_config.pos_emb_type": ("divided_fixed",),
        "vision_config.merge_type": ("sd2_tpool",), "vision_config.mm_projector_type": ("patchmerger",),
        "vision_config.projector_hidden_act": ("gelu",),
        "vision_config.rope_parameters.rope_theta": (10000,),
    },
    "lfm2": {**_SIGLIP, **_PROJECTED, **_LAST_LAYER},
    "lfm2a": {
        "encoder.subsampling": ("dw_striding",), "encoder.subsampling_factor": (8,),
        "encoder.causal_downsampling": (False,), "encoder.reduction": (None,),
        "encoder.self_attention_model": ("rel_pos",), "encoder.att_context_size": ([-1, -1], [[-1, -1]]),
        "encoder.att_context_style": ("regular",), "encoder.xscaling": (False,),
        "encoder.untie_biases": (True,), "encoder.conv_norm_type": ("batch_norm",),
        "encoder.conv_context_size": (None,),
        "preprocessor.sample_rate": (16000,), "preprocessor.normalize": ("per_feature",),
        "preprocessor.window_size": (0.025,), "preprocessor.window_stride": (0.01,),
        "preprocessor.window": ("hann",), "preprocessor.n_fft": (512,), "preprocessor.preemph": (0.97,),
        "preprocessor.log": (True,), "preprocessor.frame_splicing": (1,), "preprocessor.pad_to": (0,),
        "preprocessor.pad_value": (0,),
    },
    "lightonocr": {**_SILU, "text_config.rms_norm_eps": (1e-6,)},
    "llama4": {
        "vision_config.hidden_act": ("gelu",), "vision_config.vision_feature_select_strategy": ("default",),
    },
    "minicpmv4_6": {**_SIGLIP, "slice_mode": (True,), "slice_config.max_slice_nums": (9,)},
    "minimax_m3": {
        "vision_config.hidden_act": ("gelu",), **_PROJECTED, **_LAST_LAYER,
        "vision_feature_select_strategy": ("full", "default"), "vision_config.temporal_patch_size": (2,),
        "vision_config.img_token_compression_config.temporal_patch_size": (2,),
        "vision_config.img_token_compression_config.image_token_compression_method": ("patch_merge",),
        "vision_config.position_embedding_type": ("rope",), "vision_config.rope_mode": ("3d",),
    },
    "mlp": {"vision_config.hidden_act": ("quick_gelu", "gelu"), **_PROJECTED},
    "paddleocr": _SIGLIP,
    "pixtral": {**_SILU, **_PROJECTED, **_LAST_LAYER, "text_config.rms_norm_eps": (1e-5,)},
    "qwen2vl_merger": {"vision_config.hidden_act": ("quick_gelu",), **_FRAMES},
    "qwen2.5vl_merger": {**_SILU, **_FRAMES},
    "qwen3vl_merger": {**_SIGLIP, **_FRAMES},
    "qwen2a": {"audio_config.activation_function": ("gelu",)},
    "qwen2.5o": {
        **_SILU, **_FRAMES, "audio_config.activation_function": ("gelu",), "audio_config.n_window": (100,),
    },
    "qwen3a": {
        "audio_config.activation_function": ("gelu",), "audio_config.n_window": (50,),
        "audio_config.n_window_infer": (800,),
    },
    "resampler": {**_SIGLIP, "slice_mode": (True,), "slice_config.max_slice_nums": (9,)},
    "step3vl": {
        "understand_projector_stride": (2,), "vision_config.hidden_act": ("quick_gelu", "quickgelu"),
        "vision_config.use_cls_token": (False,), "vision_config.use_rope2d": (True,),
        "vision_config.use_ln_post": (False,),
    },
    "ultravox": {
        "audio_config.activation_function": ("gelu",), "projector_act": ("swiglu",),
        "projector_ln_mid": (True,), "num_projector_layers": (0,), "audio_latency_block_size": (None,),
        "audio_model_lora_config.r": (0,), "text_model_lora_config.r": (0,),
    },
    "voxtral": {"audio_config.activation_function": ("gelu",), "projector_hidden_act": ("gelu",)},
}  # fmt: skip
_SLICES: Final = {"max_slice_nums": (9,), "slice_mode": (True,), "downsample_mode": ("16x",)}
#: Image preprocessing settings (`preprocessor_config.json`), by projector type.
_IMAGE_SETTINGS: Final[Mapping[str, Mapping[str, tuple[Any, ...]]]] = {
    "deepseekocr2": {"crop_to_patches": (True,)},
    "minicpmv4_6": _SLICES,
    "resampler": _SLICES,
    "step3vl": {"do_normalize": (True,)},
}


def check_tower(config: Config, keys: Mapping[str, Any]) -> None:
    """Raise ConversionError for a setting that `keys` lack and that differs from what readers assume."""
    named = ("vision.projector_type", "audio.projector_type", "projector_type")
    kind = next((keys[key] for key in named if key in keys), "")
    for name, allowed in {**_OF_ALL, **_ASSUMED.get(kind, {})}.items():
        value: Any = config.whole
        for part in name.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if value is not None and value not in allowed:
            raise ConversionError(
                f"config.json: '{name}' is {shown(value)}, and a tower of type {kind} can only have "
                f"{' or '.join(shown(each) for each in allowed)} in a file"
            )
    image_settings = dict(_IMAGE_SETTINGS.get(kind, {}))
    if kind == "resampler":
        image_settings["scale_resolution"] = (keys.get("vision.image_size"),)
    for name, allowed in image_settings.items():
        if (value := config.image_setting(name, allowed[0])) not in allowed:
            raise ConversionError(
                f"preprocessor_config.json: '{name}' is {shown(value)}, and a tower of type {kind} can only "
                f"have {' or '.join(shown(each) for each in allowed)} in a file"
            )
    heads, hidden = keys.get("vision.attention.head_count"), keys.get("vision.embedding_length")
    if type(heads) is not int or type(hidden) is not int or heads < 1 or kind == "gemma3nv":
        return
    for name, right in (("head_dim", hidden // heads), ("num_key_value_heads", heads)):
        if (value := config.get(name)) is not None and value != right:
            raise ConversionError(
                f"config.json: 'vision_config.{name}' is {shown(value)}, and a tower of type {kind} can only "
                f"have {right} in a file"
            )
