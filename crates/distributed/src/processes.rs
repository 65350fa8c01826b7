//! Child processes that share memory with their parent.

#[cfg(unix)]
mod child;

use crate::group::{error, is_initialized};
#[cfg(unix)]
use child::run_in;
use kiln_tensor::{Result, draw_seed, is_recording, realize_all, set_rng_state};

/// Runs a function in child processes, each with its number, and waits for them (`torch.multiprocessing.spawn`). They are
/// forks: they begin with everything that this process has, and what they change is their own, but for `Var`s in shared
/// memory ([`kiln_nn::Module::share_memory`]). If one fails, the others are ended; if this process ends, all are.
///
/// Hogwild training (Recht et al., 2011): every process updates the parameters without a lock.
///
/// ```
/// use kiln_distributed::spawn;
/// use kiln_nn::optim::{Optimizer, SGD};
/// use kiln_nn::{Forward, Linear, Module};
/// use kiln_tensor::{DType, Tensor, keep, set_threads};
/// let model = Linear::new(3, 1)?;
/// model.share_memory()?;
/// let before = model.weight.to_vec::<f32>()?;
/// spawn(2, |_| {
///     set_threads(1);
///     let mut opt = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
///     for _ in 0..10 {
///         opt.zero_grad();
///         let x = Tensor::randn([8, 3], DType::F32); // others in each process
///         (model.call(&x) - x.sum(keep(1))).square().mean(()).backward()?;
///         opt.step()?;
///     }
///     Ok(())
/// })?;
/// assert_ne!(model.weight.to_vec::<f32>()?, before);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// A child is a fork, so call this while no other thread of this process uses Kiln. GPUs and process groups are opened in
/// the function: `init_process_group_with("nccl", ..)` takes `rank`, `world_size` and an `init_method` of `tcp://` there.
/// Each child has random numbers of its own, and all cores unless it calls [`kiln_tensor::set_threads`].
///
/// # Errors
/// The error of the first child that fails, panics or is killed; if a child can't be started, there is a process group, or
/// inside `compile`. Windows has no forks.
#[track_caller]
pub fn spawn(nprocs: usize, f: impl Fn(usize) -> Result<()>) -> Result<()> {
    if is_initialized() {
        let text = "there is a process group, which a child can't have: spawn first, and init_process_group in the function";
        return Err(error("spawn", text));
    }
    if is_recording() {
        return Err(error("spawn", "processes can't be started inside compile"));
    }
    let seed = draw_seed();
    let run = |rank: usize| {
        set_rng_state([seed.wrapping_add(rank as u64), 0]);
        // Assignments that nothing has read yet.
        f(rank).and_then(|()| realize_all())
    };
    match run_in(nprocs, &run) {
        Ok(()) => Ok(()),
        Err(text) => Err(error("spawn", text)),
    }
}

#[cfg(not(unix))]
fn run_in(_: usize, _: &impl Fn(usize) -> Result<()>) -> std::result::Result<(), String> {
    Err("this system can't fork a process".into())
}
