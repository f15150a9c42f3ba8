"""Settings of small models that mix attention with convolutions, recurrences or linear attention."""

from __future__ import annotations

SETTINGS = {"num_hidden_layers": 4, "num_key_value_heads": 4}
"""Of all of them."""
LINEAR = ["linear_attention", "full_attention"] * 2
DELTA = {
    "layer_types": LINEAR,
    "head_dim": 8,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
ZAMBA = {"mamba_d_state": 8, "layers_block_type": ["mamba", "hybrid"] * 2, "n_mamba_heads": 2}
HYBRIDS = {
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "qwen3_next": {**DELTA, **EXPERTS},
    "qwen3_5_text": DELTA,
    "olmo_hybrid": DELTA,
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 2, "shared_intermediate_size": 32, **MAMBA},
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 1, "mamba_d_state": 8},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"] * 2,
        "head_dim": 8,
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 16,
    },
    "minimax": {"layer_types": LINEAR, "head_dim": 8, "num_local_experts": 2, "block_size": 16},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"], "lru_width": 32, "head_dim": 8},
    "zamba": {**ZAMBA, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "zamba2": {
        **ZAMBA,
        "mamba_headdim": 8,
        "n_mamba_heads": 8,
        "adapter_rank": 4,
        "num_mem_blocks": 1,
        "chunk_size": 16,
    },
    "falcon_h1": {"mamba_d_ssm": 64, **MAMBA},
}
"""The second and the fourth block are attention; every block of falcon_h1 has both attention and a state space."""
