//! Mixed precision: its calls, the lists of autocast, and Apex's levels.

use super::rows;
use kiln_nn::amp::{self, Amp, GradScaler, LossScale, OptLevel, ScaleLoss, Scaling};
use kiln_nn::optim::Optimizer;
use kiln_nn::{Linear, Module, is_norm};
use kiln_tensor::{
    AutocastOp, AutocastRule, Calibration, CustomFunction, DType, Result, Tensor, Var,
    assign_unless, autocast, autocast_ops, current_autocast, is_autocast_enabled, no_autocast,
    quantize_dynamic, reduce_range, set_autocast,
};
use std::fmt::Write;

rows! {
    (x: &Tensor, y: &Tensor, w: &Var, loss: &Tensor, flag: &Tensor, f: CustomFunction<Tensor, Tensor, (Tensor, ())>, model: &Linear, optimizer: &mut Optimizer, scaler: &mut GradScaler, amp: &mut Amp, calibration: &mut Calibration);
    "torch.autocast(device, dtype)" = { autocast(DType::BF16, || x.matmul(y)) } "the device is the operands'";
    "torch.autocast(device, enabled=False)" = { no_autocast(|| x.matmul(y)) };
    "torch.set_autocast_enabled, torch.set_autocast_dtype" = { set_autocast(None) } "until the guard is dropped";
    "torch.is_autocast_enabled" = { is_autocast_enabled() };
    "torch.get_autocast_dtype" = { current_autocast().map(|casts| casts.dtype) };
    "torch.amp.custom_fwd(cast_inputs=)" = { f.cast_inputs(DType::F32) } "the derivative casts as its function does";
    "Module.half" = { model.half()? } "`bfloat16`, `float`, `double` too";
    "Module.to(dtype)" = { model.to_dtype(DType::BF16)? };
    "Module.to(dtype) of some modules" = { model.to_dtype_where(DType::BF16, &|m| !is_norm(m))? };
    "Parameter.data = Parameter.data.to(dtype)" = { w.to_dtype_(DType::F16)? };
    "Parameter.data.bfloat16(), kept beside the parameter" = { w.keep_narrow(DType::BF16)? } "autocast takes it in place of a cast; what an optimiser updates gets it at the first cast";
    "Parameter.data.bfloat16(), kept from the first cast on" = { w.keep_casts() } "`narrow_copy` gives it";
    "the copy that is kept" = { w.narrow_copy() };
    "Parameter.data.copy_(value), unless a flag on the device is set" = { assign_unless(flag, [(w, x)])? } "a step that is skipped without asking the host";
    "a function that sees every value a run gives a parameter" = { w.watch(|value| println!("{value}")) };
    "torch.ao.quantization.quantize_dynamic(model)" = { quantize_dynamic(|| x.linear(w)) } "of any function";
    "torch.ao.quantization.prepare(model), and data" = { calibration.observe(|| x.linear(w))? };
    "torch.ao.quantization.convert(model)" = { calibration.quantized(|| x.linear(w)) };
    "reduce_range=True of observers" = { reduce_range(|| quantize_dynamic(|| x.linear(w))) } "off unless asked for";
    "torch.ops.quantized_decomposed.quantize_per_tensor" = { x.quantize_per_tensor(0.1, 10, DType::U8) };
    "torch.ops.quantized_decomposed.dequantize_per_tensor" = { x.to_dtype(DType::U8).dequantize_per_tensor(0.1, 10) };
    "torch._int_mm" = { x.to_dtype(DType::I32).matmul(y.to_dtype(DType::I32)) } "of bytes that were cast: they are multiplied as bytes";
    "torch.amp.GradScaler" = { GradScaler::new() };
    "torch.amp.GradScaler(init_scale=, enabled=)" = { GradScaler::with(Scaling::new().init_scale(1024.0))? };
    "GradScaler.scale" = { scaler.scale(loss) };
    "GradScaler.unscale_" = { scaler.unscale_(optimizer)? };
    "GradScaler.step" = { scaler.step(optimizer)? };
    "GradScaler.update" = { scaler.update()? };
    "GradScaler.update(new_scale)" = { scaler.update_to(128.0)? };
    "GradScaler.get_scale" = { scaler.get_scale()? } "`scale_tensor` is the same without reading it; `skipped` counts";
    "GradScaler.state_dict" = { scaler.state_dict()? } "under PyTorch's names";
    "GradScaler.load_state_dict" = { scaler.load_state_dict(&scaler.state_dict()?)? };
    "apex.amp.initialize" = { amp::initialize(model, &mut [optimizer], OptLevel::O2)? };
    "apex.amp.scale_loss" = { amp.scale_loss(loss, &mut [optimizer], |scaled| scaled.backward())? };
    "apex.amp.scale_loss(loss_id=, delay_unscale=)" = { amp.scale_loss_with(loss, &mut [optimizer], ScaleLoss::new().loss_id(1i64), |scaled| scaled.backward())? };
    "apex.amp.master_params" = { amp::master_params(optimizer) };
    "apex.amp.state_dict" = { amp.state_dict()? };
    "apex.optimizers.FusedAdam" = { Optimizer::new(model.parameters(), amp::FusedAdam::new())? } "every update is fused; also `FusedSGD`";
    "apex.normalization.FusedLayerNorm" = { amp::FusedLayerNorm::new(64)? } "every norm is; also `FusedRMSNorm`";
}

/// The operations by their treatment on a GPU and on a CPU.
pub(super) fn lists() -> String {
    let said = |rule: Option<AutocastRule>| match rule {
        None => "as they are",
        Some(AutocastRule::Lower) => "lower",
        Some(AutocastRule::Full) => "f32",
        Some(AutocastRule::Widest) => "widest",
        Some(AutocastRule::Refused) => "error",
    };
    let mut kinds: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for AutocastOp { name, cuda, cpu } in autocast_ops() {
        let (cuda, cpu) = (said(*cuda), said(*cpu));
        match kinds.iter_mut().find(|k| (k.0, k.1) == (cuda, cpu)) {
            Some(kind) => kind.2.push(name),
            None => kinds.push((cuda, cpu, vec![name])),
        }
    }
    kinds.sort_by_key(|k| std::cmp::Reverse(k.2.len()));
    let mut table = "| on a GPU | on a CPU | operations |\n|---|---|---|\n".to_string();
    for (cuda, cpu, names) in kinds {
        let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
        writeln!(table, "| {cuda} | {cpu} | {} |", names.join(", ")).unwrap();
    }
    table
}

/// The properties of Apex's levels.
pub(super) fn levels() -> String {
    let mut table = "| | `cast_model_type` | `patch_torch_functions` | `keep_batchnorm_fp32` | `master_weights` | `loss_scale` |\n|---|---|---|---|---|---|\n".to_string();
    for level in OptLevel::ALL {
        let p = level.properties(DType::F16);
        let said = |on: Option<bool>| on.map_or("does not apply".to_string(), |on| on.to_string());
        let dtype = p
            .cast_model_type
            .map_or("none".to_string(), |d| d.to_string());
        let scale = match p.loss_scale {
            LossScale::Dynamic => "dynamic".to_string(),
            LossScale::Fixed(scale) => format!("{scale:.1}"),
        };
        let (patch, norms) = (p.patch_torch_functions, said(p.keep_batchnorm_fp32));
        let masters = said(p.master_weights);
        writeln!(
            table,
            "| `{level:?}` | {dtype} | {patch} | {norms} | {masters} | {scale} |"
        )
        .unwrap();
    }
    table
}
