//! Normalisation, activations and attention.

use super::rows;
use kiln_tensor::{
    Affine, Attention, LocalResponse, MultiHeadAttention, Normalize, Result, RunningStats,
    SoftPlus, Tensor, Var,
};

rows! {
    (x: &Tensor, y: &Tensor, z: &Tensor, weight: &Tensor, bias: &Tensor, mean: &Var, var: &Var, mask: &Tensor, slope: &Tensor, call: &MultiHeadAttention, dim: i64, training: bool, causal: bool);
    "torch.nn.functional.batch_norm" = { x.batch_norm_with(RunningStats::new().running_mean(mean).running_var(var)) } "running statistics are `Var`s";
    "torch.nn.functional.batch_norm by the batch alone" = { x.batch_norm() };
    "torch.nn.functional.batch_norm(weight=, bias=, training=)" = { x.batch_norm_with(RunningStats::new().weight(weight).bias(bias).training(training)) } "assigns the running statistics; also `.momentum(..)`, `.eps(..)`";
    "torch.nn.functional.instance_norm" = { x.instance_norm() };
    "torch.nn.functional.instance_norm(running_mean=, use_input_stats=)" = { x.instance_norm_with(RunningStats::new().running_mean(mean).running_var(var).training(training)) } "also `.weight(..)`, `.bias(..)`, `.momentum(..)`, `.eps(..)`";
    "torch.nn.functional.layer_norm" = { x.layer_norm(64) };
    "torch.nn.functional.layer_norm(weight=, bias=, eps=)" = { x.layer_norm_with([8, 64], Affine::new().weight(weight).bias(bias).eps(1e-6)) };
    "torch.nn.functional.rms_norm" = { x.rms_norm(64) };
    "torch.nn.functional.rms_norm(weight=, eps=)" = { x.rms_norm_with(64, Affine::new().weight(weight).eps(1e-6)) };
    "torch.nn.functional.group_norm" = { x.group_norm(4) };
    "torch.nn.functional.group_norm(weight=, bias=, eps=)" = { x.group_norm_with(4, Affine::new().weight(weight).bias(bias)) };
    "torch.nn.functional.local_response_norm" = { x.local_response_norm(5) };
    "torch.nn.functional.local_response_norm(alpha=, beta=, k=)" = { x.local_response_norm(LocalResponse::new(5).alpha(1e-3)) } "also `.beta(..)`, `.k(..)`";
    "torch.nn.functional.normalize" = { x.normalize(dim) };
    "torch.nn.functional.normalize(p=, eps=)" = { x.normalize_with(dim, Normalize::new().p(1.0)) };
    "torch.renorm" = { x.renorm(2.0, dim, 1.0) };
    "torch.softmax", "torch.nn.functional.softmax", "torch.special.softmax" = { x.softmax(dim) } "`dtype=` is a `to_dtype` before it";
    "torch.log_softmax", "torch.nn.functional.log_softmax" = { x.log_softmax(dim) };
    "torch.nn.functional.softmin" = { x.softmin(dim) };
    "torch.relu", "torch.nn.functional.relu" = { x.relu() };
    "torch.nn.functional.relu6" = { x.relu6() };
    "torch.nn.functional.leaky_relu" = { x.leaky_relu() };
    "torch.nn.functional.leaky_relu(negative_slope=)" = { x.leaky_relu_with(0.2) };
    "torch.nn.functional.prelu" = { x.prelu(slope) };
    "torch.nn.functional.elu" = { x.elu() };
    "torch.nn.functional.elu(alpha=)" = { x.elu_with(0.5) };
    "torch.nn.functional.selu" = { x.selu() };
    "torch.nn.functional.celu" = { x.celu() };
    "torch.nn.functional.celu(alpha=)" = { x.celu_with(0.5) };
    "torch.nn.functional.gelu" = { x.gelu() };
    "torch.nn.functional.gelu(approximate=\"tanh\")" = { x.gelu_tanh() };
    "torch.nn.functional.silu" = { x.silu() };
    "torch.nn.functional.mish" = { x.mish() };
    "torch.nn.functional.softplus" = { x.softplus() };
    "torch.nn.functional.softplus(beta=, threshold=)" = { x.softplus_with(SoftPlus::new().beta(2.0)) };
    "torch.nn.functional.softsign" = { x.softsign() };
    "torch.nn.functional.logsigmoid" = { x.logsigmoid() };
    "torch.nn.functional.hardsigmoid" = { x.hardsigmoid() };
    "torch.nn.functional.hardswish" = { x.hardswish() };
    "torch.nn.functional.hardtanh" = { x.hardtanh() };
    "torch.nn.functional.hardtanh(min_val=, max_val=)" = { x.hardtanh_with(-2, 2) };
    "torch.nn.functional.hardshrink" = { x.hardshrink() };
    "torch.nn.functional.hardshrink(lambd=)" = { x.hardshrink_with(0.1) };
    "torch.nn.functional.softshrink" = { x.softshrink() };
    "torch.nn.functional.softshrink(lambd=)" = { x.softshrink_with(0.1) };
    "torch.nn.functional.tanhshrink" = { x.tanhshrink() };
    "torch.nn.functional.threshold" = { x.threshold(0.1, 20) };
    "torch.nn.functional.glu" = { x.glu(dim) };
    "torch.nn.functional.dropout" = { x.dropout(0.5) };
    "torch.nn.functional.dropout(training=)" = { x.dropout_with(0.5, training) };
    "torch.nn.functional.dropout1d" = { x.dropout1d(0.5) };
    "torch.nn.functional.dropout1d(training=)" = { x.dropout1d_with(0.5, training) };
    "torch.nn.functional.dropout2d" = { x.dropout2d(0.5) } "three dims are `[n, c, l]`";
    "torch.nn.functional.dropout2d(training=)" = { x.dropout2d_with(0.5, training) };
    "torch.nn.functional.dropout3d" = { x.dropout3d(0.5) };
    "torch.nn.functional.dropout3d(training=)" = { x.dropout3d_with(0.5, training) };
    "torch.nn.functional.alpha_dropout" = { x.alpha_dropout(0.5) };
    "torch.nn.functional.alpha_dropout(training=)" = { x.alpha_dropout_with(0.5, training) };
    "torch.nn.functional.feature_alpha_dropout" = { x.feature_alpha_dropout(0.5) };
    "torch.nn.functional.feature_alpha_dropout(training=)" = { x.feature_alpha_dropout_with(0.5, training) };
    "torch.nn.functional.scaled_dot_product_attention" = { x.scaled_dot_product_attention(y, z) };
    "torch.nn.functional.scaled_dot_product_attention(is_causal=)" = { x.scaled_dot_product_attention_with(y, z, Attention::new().is_causal(causal)) } "also `.dropout_p(..)`, `.scale(..)`, `.enable_gqa(true)`";
    "torch.nn.functional.scaled_dot_product_attention(dropout_p=), and what it dropped" = { x.scaled_dot_product_attention_with_dropout(y, z, Attention::new().dropout_p(0.1)) } "what multiplies the weights";
    "torch.nn.functional.scaled_dot_product_attention(attn_mask=)" = { x.scaled_dot_product_attention_with(y, z, Attention::new().attn_mask(mask)) };
    "torch.nn.functional.multi_head_attention_forward" = { x.multi_head_attention_forward(y, z, call) } "the options are fields of `MultiHeadAttention`; random weights of dropout can't be compared";
}
