//! L-BFGS.

mod wolfe;

use super::{Description, Rule, Search, Update};
use kiln_tensor::{DType, Error, Int, MaybeInt, Result, Tensor, options};
use std::collections::VecDeque;
use wolfe::strong_wolfe;

/// The line search of [`LBFGS`] along a direction.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum LineSearch {
    /// Searches for a point where the strong Wolfe conditions hold (Nocedal and Wright, 2006, algorithms 3.5 and 3.6).
    StrongWolfe,
}

options! {
    /// L-BFGS (Nocedal, 1980), `torch.optim.LBFGS`: a quasi-Newton method, which evaluates the loss several times
    /// a step; see [`Optimizer::step_with`](super::Optimizer::step_with). Its vectors are computed in f64 on the
    /// host, so parameters may be on several devices.
    LBFGS () {
        /// Learning rate: the first step length along each direction but the first, where it is scaled down.
        lr: f64 = 1.0,
        /// The limit of directions per step.
        max_iter: Int = 20,
        /// The limit of evaluations per step; 5/4 of `max_iter` if it is `None`.
        max_eval: MaybeInt = MaybeInt(None),
        /// A gradient whose largest element is at most this counts as zero.
        tolerance_grad: f64 = 1e-7,
        /// A change of loss or parameters that is at most this counts as none.
        tolerance_change: f64 = 1e-9,
        /// The number of the last changes that are kept.
        history_size: Int = 100,
        /// The line search along a direction; the step length is `lr` if it is `None`.
        line_search_fn: Option<LineSearch> = None,
        /// Ascends instead.
        maximize: bool = false,
    }
}

impl Rule for LBFGS {
    fn describe(&self) -> Description {
        let max_eval = (self.max_eval.0).unwrap_or(self.max_iter.0.saturating_mul(5) / 4);
        Description::new("LBFGS")
            .number("lr", self.lr)
            .number_in("max_iter", self.max_iter.0 as f64, 1.0..)
            .number_in("max_eval", max_eval as f64, 1.0..)
            .number("tolerance_grad", self.tolerance_grad)
            .number("tolerance_change", self.tolerance_change)
            .number_in("history_size", self.history_size.0 as f64, 1.0..)
            .flag("strong_wolfe", self.line_search_fn.is_some())
            .flag("maximize", self.maximize)
            .by_search()
    }

    fn update(&self, u: &mut Update) -> Tensor {
        u.parameter()
    }

    fn search(&self, s: &mut Search) -> Result<Tensor> {
        let limit = |name: &str| s.number(name) as u64;
        let (max_iter, max_eval) = (limit("max_iter"), limit("max_eval"));
        let change = s.number("tolerance_change");
        let mut memory = Memory::load(s)?;
        let initial_loss = s.evaluate()?;
        let mut point = self.point(s, &initial_loss)?;
        let mut evaluations = 1;
        for i in 1..=max_iter {
            if largest(&point.gradient) <= s.number("tolerance_grad") {
                break;
            }
            memory.set_direction(&point.gradient, s.number("history_size") as usize);
            let before = point.loss;
            let mut t = s.number("lr");
            if memory.iterations == 1.0 {
                t *= (1.0 / point.gradient.iter().map(|g| g.abs()).sum::<f64>()).min(1.0);
            }
            memory.t = t;
            let slope = dot(&point.gradient, &memory.direction);
            if slope > -change {
                break;
            }
            let start = s.position()?;
            let direction = &memory.direction;
            let go = |s: &Search, t: f64| s.go_to(&step_along(&start, t, direction));
            let mut trials = 0;
            if self.line_search_fn.is_some() {
                let left = max_eval.saturating_sub(evaluations);
                let start_trial = wolfe::Trial {
                    t: 0.0,
                    point,
                    slope,
                };
                let mut trial = |t: f64| {
                    trials += 1;
                    go(s, t)?;
                    let loss = s.evaluate()?;
                    let point = self.point(s, &loss)?;
                    let slope = dot(&point.gradient, direction);
                    Ok(wolfe::Trial { t, point, slope })
                };
                let limits = (left, change / largest(direction));
                let accepted = strong_wolfe(start_trial, t, limits, &mut trial)?;
                (point, memory.t) = (accepted.point, accepted.t);
                go(s, memory.t)?;
            } else {
                go(s, t)?;
                if i < max_iter {
                    trials = 1;
                    let loss = s.evaluate()?;
                    point = self.point(s, &loss)?;
                }
            }
            evaluations += trials;
            let still = largest(&memory.direction) * memory.t.abs() <= change;
            if evaluations >= max_eval || still || (point.loss - before).abs() < change {
                break;
            }
        }
        memory.evaluations += evaluations as f64;
        memory.store(s);
        Ok(initial_loss)
    }
}

impl LBFGS {
    /// Returns the loss and the gradient at the current position.
    fn point(&self, s: &Search, loss: &Tensor) -> Result<Point> {
        let sign = if self.maximize { -1.0 } else { 1.0 };
        let mut gradient = s.gradient()?;
        gradient.iter_mut().for_each(|g| *g *= sign);
        let loss = loss.detach().to_dtype(DType::F64).item::<f64>()? * sign;
        Ok(Point { loss, gradient })
    }
}

/// The loss and its gradient at a position.
#[derive(Clone)]
struct Point {
    loss: f64,
    gradient: Vec<f64>,
}

/// The state that is kept from iteration to iteration.
#[derive(Default)]
struct Memory {
    iterations: f64,
    evaluations: f64,
    direction: Vec<f64>,
    /// The step length along it.
    t: f64,
    /// The gradient at its start.
    gradient: Vec<f64>,
    /// Changes of gradients and of positions, the oldest first.
    changes: VecDeque<[Vec<f64>; 2]>,
    /// The first estimate of the inverse curvature.
    scale: f64,
}

impl Memory {
    /// Computes the next direction.
    fn set_direction(&mut self, gradient: &[f64], history: usize) {
        self.iterations += 1.0;
        if self.iterations == 1.0 {
            self.scale = 1.0;
        } else {
            let y = step_along(gradient, -1.0, &self.gradient);
            let s: Vec<f64> = self.direction.iter().map(|d| d * self.t).collect();
            let curvature = dot(&y, &s);
            if curvature > 1e-10 {
                self.scale = curvature / dot(&y, &y);
                self.changes.push_back([y, s]);
            }
        }
        while self.changes.len() > history {
            self.changes.pop_front();
        }
        // The two loops of Nocedal and Wright, algorithm 7.4.
        let mut d: Vec<f64> = gradient.iter().map(|g| -g).collect();
        let mut shares = Vec::new();
        for [y, s] in self.changes.iter().rev() {
            let share = dot(s, &d) / dot(y, s);
            d = step_along(&d, -share, y);
            shares.push(share);
        }
        d.iter_mut().for_each(|d| *d *= self.scale);
        for [y, s] in &self.changes {
            let share = shares.pop().unwrap_or(0.0) - dot(y, &d) / dot(y, s);
            d = step_along(&d, share, s);
        }
        self.direction = d;
        self.gradient = gradient.to_vec();
    }

    /// Reads the state that the last step left.
    fn load(s: &Search) -> Result<Memory> {
        let read = |name: &str| match s.state(name) {
            Some(value) => value.to_dtype(DType::F64).to_vec::<f64>(),
            None => Ok(Vec::new()),
        };
        let number = |name: &str| Ok::<f64, Error>(read(name)?.first().copied().unwrap_or(0.0));
        let sizes = s.parameters().iter().map(|p| p.numel());
        let n = sizes.sum::<Result<usize>>()?;
        let memory = Memory {
            iterations: number("n_iter")?,
            evaluations: number("func_evals")?,
            direction: read("d")?,
            t: number("t")?,
            gradient: read("prev_flat_grad")?,
            changes: VecDeque::new(),
            scale: number("H_diag")?,
        };
        let (ys, ss) = (read("old_dirs")?, read("old_stps")?);
        let has_size = |v: &[f64]| v.len() == if memory.iterations > 0.0 { n } else { 0 };
        let fit = has_size(&memory.direction) && has_size(&memory.gradient);
        if !fit || ys.len() != ss.len() || ys.len() % n.max(1) != 0 {
            let message = format!("the state is not that of parameters of {n} numbers");
            return Err(Error::invalid("LBFGS", message));
        }
        let pairs = ys.chunks(n.max(1)).zip(ss.chunks(n.max(1)));
        let changes = pairs.map(|(y, s)| [y.to_vec(), s.to_vec()]).collect();
        Ok(Memory { changes, ..memory })
    }

    fn store(&self, search: &mut Search) {
        let vector = |v: &[f64]| Tensor::from_slice(v, [v.len()]);
        let rows = |i: usize| {
            let flat: Vec<f64> = self.changes.iter().flat_map(|c| c[i].clone()).collect();
            Tensor::from_slice(&flat, [self.changes.len(), self.gradient.len()])
        };
        search.set("n_iter", Tensor::scalar(self.iterations));
        search.set("func_evals", Tensor::scalar(self.evaluations));
        search.set("t", Tensor::scalar(self.t));
        search.set("H_diag", Tensor::scalar(self.scale));
        search.set("d", vector(&self.direction));
        search.set("prev_flat_grad", vector(&self.gradient));
        search.set("old_dirs", rows(0));
        search.set("old_stps", rows(1));
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `from + t · direction`.
fn step_along(from: &[f64], t: f64, direction: &[f64]) -> Vec<f64> {
    let both = from.iter().zip(direction);
    both.map(|(x, d)| x + t * d).collect()
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |m: f64, x| m.max(x.abs()))
}
