//! Gradients, state and compilation.

use super::rows;
use kiln_tensor::{
    Compiled, CustomOp, Device, GradOptions, HookHandle, Result, ScanOptions, Spec, Tensor, Var,
    assign_together, backends, checkpoint, compile, cond, custom_function, detect_anomaly,
    enable_grad, explain, grad, grad_with, gradcheck, is_anomaly_enabled, is_grad_enabled, jvp,
    no_grad, profiler, realize_all, scan, scan_with, set_detect_anomaly, set_grad_enabled,
    set_threads, threads, vjp, with_error_note,
};

rows! {
    (x: &Tensor, y: &Tensor, loss: &Tensor, w: &Var, f: fn(&[Tensor]) -> Tensor, options: &GradOptions, handle: &HookHandle, specs: &[Spec], step: &Compiled, op: CustomOp, custom: &CustomOp, profile: &profiler::Profile, device: Device);
    "Tensor.requires_grad_" = { x.requires_grad_(true) } "a new handle; the old one stays data";
    "Tensor.requires_grad" = { x.requires_grad() };
    "Tensor.is_leaf" = { x.is_leaf() };
    "Tensor.grad" = { x.grad() } "an `Option`";
    "Tensor.grad = g" = { x.set_grad(Some(y))? };
    "Tensor.grad.zero_" = { x.zero_grad() };
    "Tensor.detach" = { x.detach() };
    "Tensor.clone" = { x.clone() } "free: a tensor never changes";
    "Tensor.backward" = { loss.backward()? };
    "Tensor.backward(gradient, retain_graph, create_graph)" = { loss.backward_with(Some(y), false, false)? };
    "Tensor.retain_grad" = { x.retain_grad() };
    "Tensor.register_hook" = { x.register_hook(|g| Some(g * 2.0))? };
    "RemovableHandle.remove" = { handle.remove() };
    "torch.autograd.grad" = { grad(&[loss], &[x], false)? } "the flag is `create_graph`";
    "torch.autograd.grad(grad_outputs=)" = { grad_with(&[loss], &[x], options)? };
    "torch.autograd.Function" = { custom_function(&[x], |x| x[0].exp(), |_, y, g| vec![Some(g * y)]) };
    "torch.library.custom_op" = { CustomOp::new("mine::op", |x| Ok(x[0].clone()), |x, y| y.write(x[0].as_slice::<f32>()?))? } "see `CustomOp`";
    "torch.library.register_autograd" = { op.backward(|x, y, g| vec![Some(g * y * &x[0])]) };
    "calling a custom op" = { custom.call(&[x, y]) };
    "torch.autograd.functional.vjp" = { vjp(f, &[x], y)? };
    "torch.autograd.functional.jvp" = { jvp(f, &[x], &[y])? };
    "torch.autograd.gradcheck" = { gradcheck(f, &[x], 1e-6, 1e-5, 1e-3)? };
    "torch.utils.checkpoint.checkpoint" = { checkpoint(|x: Tensor| x.exp(), x.clone()) } "the inputs: a tensor, a tuple, a list";
    "torch.cond" = { cond(loss, || x * 2.0, || x.exp()) } "the branches capture their operands";
    "torch._higher_order_ops.scan" = { scan(y.clone(), x.clone(), |s, x| (&s + &x, s)) } "the last state, and the results stacked; one compiled loop";
    "torch._higher_order_ops.scan(reverse=)" = { scan_with(&ScanOptions { reverse: true, length: None }, y.clone(), x.clone(), |s, x| (&s + &x, s)) };
    "torch.no_grad" = { no_grad(|| x * 2.0) };
    "torch.enable_grad" = { enable_grad(|| x * 2.0) };
    "torch.set_grad_enabled" = { set_grad_enabled(false) } "until the guard is dropped";
    "torch.is_grad_enabled" = { is_grad_enabled() };
    "torch.nn.Parameter" = { Var::parameter(x)? };
    "torch.nn.Buffer" = { Var::new(x)? };
    "assigning several buffers that belong together" = { assign_together([(w, x)])? } "if the run fails, all keep what they held";
    "the name in named_parameters" = { w.name() } "in errors; known once a walk over the module has seen it, or by `set_name`";
    "naming a parameter that is in no module" = { w.set_name("head.weight") };
    "naming what may fail" = { with_error_note("in the head", || x * 2.0) } "errors in data of what is recorded inside say so";
    "torch.nn.Buffer of a learning rate" = { Var::volatile(x)? } "a plan prepares nothing from it ahead of its runs";
    "isinstance(w, torch.nn.Parameter)" = { w.is_parameter() } "a frozen one, too";
    "id(w)" = { w.id() };
    "Parameter.data" = { w.get() } "a snapshot, which later updates don't change; gradients flow to the cell";
    "Parameter.data = parameter.to(device)" = { w.to_(device)? } "`Module::to` moves a whole module";
    "Parameter.data = value" = { w.assign(x)? } "of the same dtype and shape";
    "Tensor.__setitem__ on a parameter" = { w.set((0, ..), x)? };
    "Tensor.add_" = { w.add_(x)? };
    "Tensor.sub_" = { w.sub_(x)? };
    "Tensor.mul_" = { w.mul_(0.9)? };
    "Tensor.div_" = { w.div_(2)? };
    "Tensor.copy_" = { w.copy_(x)? } "broadcasts and casts";
    "Tensor.fill_" = { w.fill_(1)? };
    "Tensor.zero_" = { w.zero_()? };
    "Tensor.clamp_" = { w.clamp_(0, 1)? } "and so on: what has an in-place form in PyTorch has it on a `Var`";
    "Tensor.t_" = { w.t_()? } "of a square matrix: shapes stay";
    "Tensor.uniform_" = { w.uniform_(-0.5, 0.5)? };
    "Tensor.normal_" = { w.normal_(0.0, 0.02)? };
    "torch.compile" = { compile(specs, f)? } "compiles at once; sizes left open are named in the `Spec`s";
    "calling a compiled function" = { step.run(&[x, y])? };
    "torch._dynamo.explain" = { explain(&[x])? };
    "torch._dynamo.explain of a compiled function" = { step.explain().to_html() } "a page; `to_dot`, `save`, and text";
    "torch._dynamo.repro (accuracy)" = { step.verify(&[x, y])? } "the error of every kernel against the f64 reference";
    "torch._dynamo.repro (bisecting)" = { step.bisect(&[x, y])? } "the rewrite that makes a result wrong";
    "torch.autograd.detect_anomaly" = { detect_anomaly(|| x.to_vec::<f32>())? } "forward too, and infinities";
    "torch.autograd.set_detect_anomaly" = { set_detect_anomaly(true) } "until the guard is dropped";
    "torch.is_anomaly_enabled" = { is_anomaly_enabled() };
    "torch.profiler.profile" = { profiler::profile(|| x.realize()) } "kernels with their cost and the lines that they come from";
    "profile.key_averages().table" = { profile.key_averages().table(10) };
    "profile.export_chrome_trace" = { profile.export_chrome_trace("trace.json")? };
    "torch_xla.sync" = { x.realize()? } "computes it; reading does so by itself";
    "torch_xla.sync of everything" = { realize_all()? } "computes what this thread still holds unrealised";
    "torch.device(\"cuda\", 0)" = { Device::cuda(0)? } "an error where there is none";
    "torch.device(\"cuda\" if torch.cuda.is_available() else \"cpu\")" = { Device::best() };
    "torch.cuda.device_count" = { Device::cuda_count() };
    "torch.cuda.get_device_name" = { device.name() };
    "torch.cuda.get_device_capability" = { device.capability() };
    "torch.cuda.synchronize" = { device.synchronize()? } "tells of errors in data that no read has told of";
    "torch.cuda.memory_stats" = { device.memory() };
    "torch.cuda.empty_cache" = { device.empty_cache()? };
    "Tensor.device" = { x.device() };
    "Tensor.to(device)" = { x.to(device) };
    "torch.backends.cudnn.benchmark = True" = { backends::cudnn::set_benchmark(true) } "for products and custom ops too, on every device, remembered for the next program; more in `tuning`";
    "torch.backends.cudnn.deterministic = True" = { backends::cudnn::set_deterministic(true) } "results are deterministic anyway; then they are those of the default algorithms";
    "torch.set_num_threads" = { set_threads(4) } "results don't depend on it, with tuning either";
    "torch.get_num_threads" = { threads() };
}
