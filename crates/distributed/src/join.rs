//! Ranks with unequal numbers of inputs.

use crate::ddp::{DistributedDataParallel, broadcast, broadcast_model};
use crate::group::{ProcessGroup, SOURCE, error};
use kiln_nn::Module;
use kiln_tensor::{Result, Tensor, on_behalf_of_caller, options};

options! {
    /// The options of [`DistributedDataParallel::join_with`].
    Join () {
        /// True if gradients are divided by the number of all ranks (default yes), false if by that of the ranks that
        /// still have inputs.
        divide_by_initial_world_size: bool = true,
        /// True if all ranks stop with an error once the first one has no more inputs (default no).
        throw_on_early_termination: bool = false,
    }
}

/// The facts of one call of the model that the ranks tell each other.
#[derive(Clone, Copy, Default)]
pub(crate) struct Called {
    /// False if the rank has no more inputs.
    pub has_input: bool,
    /// True if buffers are broadcast.
    pub sends_buffers: bool,
    /// True if the backward pass reduces gradients.
    pub reduces: bool,
}

/// The answers of all ranks.
pub(crate) struct Round {
    pub options: Join,
    /// The ranks that have an input.
    pub active: Vec<usize>,
    sends_buffers: bool,
    reduces: bool,
}

impl Round {
    /// The round before the first one, of which rank 0 has the model.
    pub fn alone(options: Join) -> Round {
        Round {
            options,
            active: vec![0],
            sends_buffers: false,
            reduces: false,
        }
    }

    /// The number that makes means of sums of gradients.
    pub fn divisor(&self, group: &ProcessGroup) -> usize {
        match self.options.divide_by_initial_world_size {
            true => group.size(),
            false => self.active.len(),
        }
    }

    /// Tells the others what this rank does.
    #[track_caller]
    pub fn agree(group: &ProcessGroup, options: Join, own: Called) -> Result<Round> {
        let flags = [own.has_input, own.sends_buffers, own.reduces].map(u8::from);
        let gathered = group
            .all_gather(group.on_device(Tensor::from([flags])))
            .to_vec::<u8>()?;
        let any = |i: usize| gathered.chunks(flags.len()).any(|rank| rank[i] == 1);
        let ranks = gathered.chunks(flags.len()).enumerate();
        let active = ranks.filter(|(_, flags)| flags[0] == 1).map(|(r, _)| r);
        let active: Vec<usize> = active.collect();
        if options.throw_on_early_termination && (1..group.size()).contains(&active.len()) {
            let ended = (0..group.size()).find(|r| !active.contains(r));
            let text = format!("rank {} has no more inputs", ended.unwrap_or_default());
            return Err(error("join", text));
        }
        Ok(Round {
            options,
            active,
            sends_buffers: any(1),
            reduces: any(2),
        })
    }
}

impl<M: Module> DistributedDataParallel<M> {
    /// Calls a function in which ranks may have different numbers of inputs (`join`). A rank whose function has returned
    /// takes part in the passes of the others with gradients of zero. In the end all have the model of the ranks
    /// that had inputs for longest.
    ///
    /// In it, each call tells all ranks at once who still has inputs, and is followed by one backward pass, unless it is
    /// in `no_sync` or `no_grad`. Other collective operations, those of [`crate::SyncBatchNorm`] included, have
    /// no counterpart on ranks that have returned.
    ///
    /// ```
    /// use kiln_distributed::{DistributedDataParallel, run_in_threads};
    /// use kiln_nn::optim::{Optimizer, SGD};
    /// use kiln_nn::{Forward, Linear, Module};
    /// use kiln_tensor::{DType, Tensor};
    /// let weights = run_in_threads(2, |rank| {
    ///     let model = DistributedDataParallel::new(Linear::new(1, 1)?)?;
    ///     let mut opt = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
    ///     model.join(|| {
    ///         // One step on rank 0, two on rank 1.
    ///         for _ in 0..rank + 1 {
    ///             opt.zero_grad();
    ///             model.call(Tensor::ones([1, 1], DType::F32)).sum(()).backward()?;
    ///             opt.step()?;
    ///         }
    ///         Ok(())
    ///     })?;
    ///     model.module().weight.to_vec::<f32>()
    /// });
    /// let weights = weights.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(weights[0], weights[1]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// The function's, or if the others do something else in it.
    #[track_caller]
    pub fn join<T>(&self, f: impl FnOnce() -> Result<T>) -> Result<T> {
        self.join_with(Join::new(), f)
    }

    /// [`DistributedDataParallel::join`] with options.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn join_with<T>(&self, options: Join, f: impl FnOnce() -> Result<T>) -> Result<T> {
        let reducer = self.reducer();
        let group = &reducer.group;
        if group.size() == 1 {
            return f();
        }
        let (result, last) = reducer.joined(options.clone(), f)?;
        on_behalf_of_caller(SOURCE, || self.accompany(options, last))?;
        Ok(result)
    }

    /// Takes part in the calls of ranks that still have inputs, and then takes over the model of the last of them.
    fn accompany(&self, options: Join, mut last: Vec<usize>) -> Result<()> {
        let reducer = self.reducer();
        let (group, buffers) = (&reducer.group, self.module().buffers());
        loop {
            let round = Round::agree(group, options.clone(), Called::default())?;
            let Some(lowest) = round.active.first() else {
                break;
            };
            if round.sends_buffers {
                broadcast(group, &buffers, *lowest)?;
            }
            if round.reduces {
                reducer.accompany(&round)?;
            }
            last = round.active;
        }
        broadcast_model(group, self.module(), last[0])
    }
}
