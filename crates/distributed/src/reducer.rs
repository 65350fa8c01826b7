//! The reduction of gradients in buckets.

use crate::ReduceOp;
use crate::comm_hooks::{GradBucket, allreduce_hook};
use crate::ddp::DataParallelOptions;
use crate::group::{ProcessGroup, SOURCE, error};
use crate::join::{Called, Join, Round};
use kiln_tensor::{
    Result, Tensor, Var, after_backward, cat, is_grad_enabled, is_recording, no_grad,
    on_behalf_of_caller,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A function that returns the reduced gradients of a bucket.
type Hook = Box<dyn Fn(&ProcessGroup, &GradBucket) -> Result<Tensor> + Send + Sync>;

/// The bytes with which the first bucket is full, as in PyTorch: communication begins early.
const FIRST_BUCKET: f64 = (1 << 20) as f64;

/// The state of data parallel training.
pub(crate) struct Reducer {
    pub group: ProcessGroup,
    pub options: DataParallelOptions,
    pub hook: OnceLock<Hook>,
    /// Those that require gradients, with their names.
    parameters: Vec<(String, Var)>,
    order: Mutex<Order>,
    /// The backward pass that this thread is in. The function that waits for its end holds it.
    pass: Mutex<Weak<Pass>>,
    synchronises: AtomicBool,
    /// For each parameter, true if a pass in `no_sync` has reached it since the last reduction.
    accumulated: Mutex<Vec<bool>>,
    /// The last call of the model, inside `join`.
    round: Mutex<Option<Round>>,
}

/// The parameters that a backward pass has reached, in that order.
type Pass = Mutex<Vec<usize>>;

/// The order in which gradients are put into buckets. It is the same on all ranks.
struct Order {
    parameters: Vec<usize>,
    origin: Origin,
}

/// The origin of an order.
enum Origin {
    /// The parameters from the last one to the first: about the order in which backward passes reach them.
    Assumed,
    /// The same until rank 0 has told the order of its first pass.
    Told(Tensor),
    /// That of rank 0's first pass.
    Seen,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reducer {
    pub fn new(
        group: ProcessGroup,
        parameters: Vec<(String, Var)>,
        options: DataParallelOptions,
    ) -> Result<Arc<Reducer>> {
        let order = Order {
            parameters: (0..parameters.len()).rev().collect(),
            origin: Origin::Assumed,
        };
        let reducer = Arc::new(Reducer {
            group,
            options,
            hook: OnceLock::new(),
            accumulated: Mutex::new(vec![false; parameters.len()]),
            parameters,
            order: Mutex::new(order),
            pass: Mutex::default(),
            synchronises: AtomicBool::new(true),
            round: Mutex::default(),
        });
        for (i, (_, parameter)) in reducer.parameters.iter().enumerate() {
            let reducer = Arc::downgrade(&reducer);
            parameter.register_hook(move |_| {
                if let Some(reducer) = reducer.upgrade() {
                    reducer.reach(i);
                }
                None
            })?;
        }
        Ok(reducer)
    }

    pub fn synchronises(&self) -> bool {
        self.synchronises.load(Ordering::SeqCst)
    }

    /// Calls a function in which gradients are not reduced.
    pub fn unsynchronised<T>(&self, f: impl FnOnce() -> T) -> T {
        struct Restore<'a>(&'a AtomicBool, bool);
        impl Drop for Restore<'_> {
            fn drop(&mut self) {
                self.0.store(self.1, Ordering::SeqCst);
            }
        }
        let flag = &self.synchronises;
        let _restore = Restore(flag, flag.swap(false, Ordering::SeqCst));
        f()
    }

    /// Calls a function in which ranks tell each other of each call of the model. Returns the ranks that took part in
    /// the last one, too.
    pub fn joined<T>(
        &self,
        options: Join,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Vec<usize>)> {
        struct Clear<'a>(&'a Mutex<Option<Round>>);
        impl Drop for Clear<'_> {
            fn drop(&mut self) {
                *lock(self.0) = None;
            }
        }
        *lock(&self.round) = Some(Round::alone(options));
        let _clear = Clear(&self.round);
        let result = f()?;
        let active = lock(&self.round).take().map(|round| round.active);
        Ok((result, active.unwrap_or_default()))
    }

    /// Notes a call of the model. Returns the rank whose buffers it begins with in training.
    #[track_caller]
    pub fn call(&self, sends_buffers: bool) -> Result<usize> {
        let Some(options) = lock(&self.round)
            .as_ref()
            .map(|round| round.options.clone())
        else {
            return Ok(0);
        };
        let hook_call = Called {
            has_input: true,
            sends_buffers,
            reduces: self.synchronises() && is_grad_enabled(),
        };
        let round = Round::agree(&self.group, options, hook_call)?;
        let owner = round.active[0];
        *lock(&self.round) = Some(round);
        Ok(owner)
    }

    /// Notes that a backward pass has the gradient of a parameter.
    fn reach(self: &Arc<Self>, parameter: usize) {
        let alone = self.group.size() == 1 && self.hook.get().is_none();
        if !self.synchronises() {
            lock(&self.accumulated)[parameter] = true;
            return;
        }
        if alone {
            return;
        }
        let mut pass = lock(&self.pass);
        let reached = pass.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Pass::default());
            *pass = Arc::downgrade(&new);
            let (reducer, own) = (self.clone(), new.clone());
            after_backward(move || on_behalf_of_caller(SOURCE, || reducer.reduce(&lock(&own))));
            new
        });
        lock(&reached).push(parameter);
    }

    /// Replaces the gradients of all parameters by their means.
    fn reduce(&self, reached: &[usize]) -> Result<()> {
        let mut is_reached = vec![false; self.parameters.len()];
        reached.iter().for_each(|i| is_reached[*i] = true);
        let unused = is_reached.iter().zip(&self.parameters).rev();
        let unused = unused.filter(|(reached, _)| !**reached);
        let unused: Vec<&str> = unused.map(|(_, (name, _))| &name[..]).collect();
        if !unused.is_empty() && !self.options.find_unused_parameters {
            return Err(error(
                "backward",
                format!(
                    "these parameters got no gradient, and other ranks wait for it: {}. Set \
                     `find_unused_parameters` if a pass may leave some out, or freeze them before the model is wrapped",
                    unused.join(", ")
                ),
            ));
        }
        let size = self.group.size();
        let divisor = (lock(&self.round).as_ref()).map_or(size, |round| round.divisor(&self.group));
        let mut is_used = is_reached;
        for (used, before) in is_used.iter_mut().zip(lock(&self.accumulated).iter_mut()) {
            *used |= std::mem::take(before);
        }
        no_grad(|| {
            let used = self.used_by_any(&is_used);
            let means = self.reduce_means(reached, divisor, Var::grad)?;
            let used = match used {
                // Reading stops the recording of the step, so it is read only where it can matter.
                Some(used) if !unused.is_empty() && !is_recording() => Some(used.to_vec::<u8>()?),
                _ => None,
            };
            for (i, mean) in means {
                // A parameter that no rank has used keeps its gradient, or none.
                if used.as_ref().is_none_or(|used| used[i] == 1) {
                    self.parameters[i].1.set_grad(Some(mean))?;
                }
            }
            Ok(())
        })
    }

    /// Takes part in the reduction of the others' gradients with zeros.
    pub fn accompany(&self, round: &Round) -> Result<()> {
        no_grad(|| {
            self.used_by_any(&vec![false; self.parameters.len()]);
            let divisor = round.divisor(&self.group);
            self.reduce_means(&[], divisor, |_| None).map(drop)
        })
    }

    /// For each parameter, 1 if a rank has used it; `None` if that is not asked for.
    fn used_by_any(&self, used_by_rank: &[bool]) -> Option<Tensor> {
        let flags: Vec<u8> = used_by_rank.iter().map(|used| u8::from(*used)).collect();
        (self.options.find_unused_parameters).then(|| {
            self.group
                .all_reduce(self.group.on_device(Tensor::from(flags)), ReduceOp::Max)
        })
    }

    /// The means of the gradients over all ranks, with the parameters' numbers. A missing gradient counts as zero.
    fn reduce_means(
        &self,
        reached: &[usize],
        divisor: usize,
        gradient: impl Fn(&Var) -> Option<Tensor>,
    ) -> Result<Vec<(usize, Tensor)>> {
        let buckets = self.buckets(gradient)?;
        let count = buckets.len();
        let mut means = Vec::new();
        for (index, bucket) in buckets.into_iter().enumerate() {
            let (numbers, gradients): (Vec<usize>, Vec<Tensor>) = bucket.into_iter().unzip();
            let parameters = numbers.iter().map(|i| self.parameters[*i].1.clone());
            let bucket = GradBucket {
                buffer: cat(gradients.iter().map(|g| g.reshape([-1])), 0),
                parameters: parameters.collect(),
                index,
                is_last: index + 1 == count,
                divisor,
            };
            let mean = match self.hook.get() {
                None => allreduce_hook(&self.group, &bucket)?,
                Some(hook) => hook(&self.group, &bucket)?,
            };
            let (buffer, dtype) = (&bucket.buffer, mean.dtype());
            if mean.shape()? != buffer.shape()? || dtype != buffer.dtype() {
                let text = format!(
                    "the hook returned {dtype}{:?} for a bucket of {}{:?}",
                    mean.shape()?,
                    buffer.dtype(),
                    buffer.shape()?
                );
                return Err(error("register_comm_hook", text));
            }
            means.extend(numbers.into_iter().zip(split_like(&mean, &gradients)?));
        }
        if count > 1 {
            self.record_order(reached);
        }
        Ok(means)
    }

    /// The gradients in buckets of one dtype, in order.
    fn buckets(
        &self,
        gradient: impl Fn(&Var) -> Option<Tensor>,
    ) -> Result<Vec<Vec<(usize, Tensor)>>> {
        let mut buckets: Vec<Vec<(usize, Tensor)>> = Vec::new();
        let mut bytes = 0.0;
        for i in self.order()? {
            let parameter = &self.parameters[i].1;
            let g = gradient(parameter).unwrap_or_else(|| parameter.detach().zeros_like());
            let more = g.numel()? as f64 * g.dtype().size() as f64;
            let is_full = buckets.len() == 1 && bytes >= FIRST_BUCKET;
            bytes += more;
            let fits = !is_full && bytes <= self.options.bucket_cap_mb * f64::from(1 << 20);
            match buckets.last_mut() {
                Some(last) if fits && last[0].1.dtype() == g.dtype() => last.push((i, g)),
                _ => {
                    buckets.push(vec![(i, g)]);
                    bytes = more;
                }
            }
        }
        Ok(buckets)
    }

    /// The order in which parameters are put into buckets.
    fn order(&self) -> Result<Vec<usize>> {
        let mut order = lock(&self.order);
        if let Origin::Told(told) = &order.origin
            && !is_recording()
        {
            let told = told.to_vec::<i64>()?;
            order.parameters = told.into_iter().map(|i| i as usize).collect();
            order.origin = Origin::Seen;
        }
        Ok(order.parameters.clone())
    }

    /// Records that rank 0 tells the others the order of the first pass: the next one has it.
    fn record_order(&self, reached: &[usize]) {
        let mut order = lock(&self.order);
        if !matches!(order.origin, Origin::Assumed) || is_recording() {
            return;
        }
        let mut ids = reached.to_vec();
        ids.extend(order.parameters.iter().filter(|i| !reached.contains(i)));
        let ids: Vec<i64> = ids.into_iter().map(|i| i as i64).collect();
        order.origin = Origin::Told(
            self.group
                .broadcast(self.group.on_device(Tensor::from(ids)), 0),
        );
    }
}

/// The parts of a vector with the shapes of these tensors.
pub(crate) fn split_like(vector: &Tensor, shapes_of: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut offset = 0;
    shapes_of
        .iter()
        .map(|t| {
            let (shape, len) = (t.shape()?, t.numel()?);
            let piece = vector.narrow(0, offset, len).reshape(shape);
            offset += len;
            Ok(piece)
        })
        .collect()
}
