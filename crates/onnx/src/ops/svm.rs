//! Support vector machines of `ai.onnx.ml`, as LIBSVM has them: <https://www.csie.ntu.edu.tw/~cjlin/papers/libsvm.pdf>.

use super::classify::{
    First, class_labels, classifier_results, listed_classes, two_class_results, two_class_scores,
};
use super::scores::{floats, post_transform};
use crate::call::{Call, Results, single};
use crate::fault::{invalid, unsupported};
use kiln_base::Dim;
use kiln_tensor::{DType, Error, Result, Tensor, WhileLoop, cat, keep, while_loop_with};

/// The maximum number of iterations of the estimation of probabilities.
const MAX_TURNS: i64 = 100;

/// The kernel of rows `[n, features]` and the vectors `[m, features]` in an attribute: `[n, m]`.
fn kernel(c: &Call, x: &Tensor, vectors: Vec<f32>) -> Result<Tensor> {
    let features = x.dims().get(1).and_then(Dim::as_const).unwrap_or(0);
    let features = usize::try_from(features).unwrap_or(0);
    if x.ndim() != 2 || features == 0 || !vectors.len().is_multiple_of(features) {
        return Err(invalid(format!(
            "{} numbers are not vectors of the {features} features of the input",
            vectors.len()
        )));
    }
    let vectors = Tensor::from(vectors).reshape([-1, features as i64]);
    let params = floats(c, "kernel_params")?;
    let param = |i: usize| f64::from(params.get(i).copied().unwrap_or(0.0));
    let (gamma, shift, degree) = (param(0), param(1), param(2));
    let product = || x.matmul(vectors.t());
    Ok(match c.text("kernel_type", "LINEAR")? {
        "LINEAR" => product(),
        "POLY" => (product() * gamma + shift).pow(degree),
        "RBF" => {
            let between = x.unsqueeze(1) - &vectors;
            ((&between * &between).sum(2) * -gamma).exp()
        }
        "SIGMOID" => (product() * gamma + shift).tanh(),
        other => return Err(unsupported(format!("the kernel {other:?}"))),
    })
}

pub(super) fn regressor(c: &Call) -> Results {
    let x = c.tensor(0)?.to_dtype(DType::F32);
    let (coefficients, rho) = (floats(c, "coefficients")?, floats(c, "rho")?);
    let vectors = match c.int("n_supports", 0)? {
        0 => coefficients.clone(),
        _ => floats(c, "support_vectors")?,
    };
    let kernel = kernel(c, &x, vectors)?;
    let sum = match c.int("n_supports", 0)? {
        0 => kernel,
        _ => kernel.matmul(Tensor::from(coefficients).unsqueeze(1)),
    };
    let y = sum + Tensor::from(rho);
    single(match c.flag("one_class", false)? {
        true => y.zeros_like().sub(1.0).where_cond(y.le(0.0), 1.0),
        false => post_transform(c.text("post_transform", "NONE")?, y)?,
    })
}

pub(super) fn classifier(c: &Call) -> Results {
    let x = c.tensor(0)?.to_dtype(DType::F32);
    let classes = listed_classes(c, "classlabels_ints")?;
    let (coefficients, rho) = (floats(c, "coefficients")?, floats(c, "rho")?);
    let transform = c.text("post_transform", "NONE")?;
    let counts = c.ints("vectors_per_class")?.unwrap_or_default();
    if counts.is_empty() {
        let scores = kernel(c, &x, coefficients)? + Tensor::from(rho);
        scores.check()?;
        return match classes.len() {
            ..=2 if scores.dims()[1] == Dim::ONE => {
                two_class_results(&classes, scores, 0.0, transform, First::Opposite)
            }
            _ => classifier_results(&classes, scores, transform),
        };
    }
    if counts.len() < 2 {
        return Err(invalid("there are fewer than 2 classes"));
    }
    if rho.len() != counts.len() * (counts.len() - 1) / 2 || classes.len() != counts.len() {
        return Err(invalid(format!(
            "{} values of rho and {} labels are not those of {} classes",
            rho.len(),
            classes.len(),
            counts.len()
        )));
    }
    let pairs = Pairs::new(&counts)?;
    let kernel = kernel(c, &x, floats(c, "support_vectors")?)?;
    let weights = pairs.weights(&coefficients)?;
    let scores = kernel.linear_with(weights, Tensor::from(rho));
    // Each pair of classes votes for one of them.
    let votes = pairs.votes(&scores.gt(0.0).to_dtype(DType::F32));
    let label = class_labels(&classes, votes.argmax(1));
    let first_chance = match transform {
        "NONE" => First::Opposite,
        _ => First::Complement,
    };
    let (a, b) = (floats(c, "prob_a")?, floats(c, "prob_b")?);
    let scores = match pairs.list.len() {
        n if !a.is_empty() => {
            if [a.len(), b.len()] != [n; 2] {
                return Err(invalid(
                    "prob_a and prob_b are not those of pairs of classes",
                ));
            }
            let first_chance = 1.0 - (scores * Tensor::from(a) + Tensor::from(b)).sigmoid();
            let scores = pairs.probabilities(&first_chance.clamp(1e-7, 1.0 - 1e-7))?;
            post_transform(transform, scores)?.into()
        }
        1 => two_class_scores(scores, transform, first_chance).into(),
        _ => post_transform(transform, scores)?.into(),
    };
    Ok(vec![label, scores])
}

/// Pairs of classes.
struct Pairs {
    classes: usize,
    /// In the order of LIBSVM: the first with each behind it, then the second.
    list: Vec<[usize; 2]>,
    /// The class of each support vector.
    owners: Vec<usize>,
}

impl Pairs {
    /// The pairs of classes that have so many support vectors each.
    fn new(counts: &[i64]) -> Result<Pairs> {
        let mut owners = Vec::new();
        for (class, n) in counts.iter().enumerate() {
            let end = usize::try_from(*n)
                .ok()
                .and_then(|n| n.checked_add(owners.len()));
            let end = end.filter(|n| *n <= 1 << 24);
            owners.resize(
                end.ok_or_else(|| invalid(format!("{n} support vectors")))?,
                class,
            );
        }
        let classes = counts.len();
        let later_classes = |i: usize| (i + 1..classes).map(move |j| [i, j]);
        Ok(Pairs {
            classes,
            list: (0..classes).flat_map(later_classes).collect(),
            owners,
        })
    }

    /// The weights `[pairs, vectors]` of support vectors in the functions of pairs. Row `r` of `coefficients`
    /// `[classes - 1, vectors]` is that of each class beside its `r`th other.
    fn weights(&self, coefficients: &[f32]) -> Result<Tensor> {
        let vectors = self.owners.len();
        if coefficients.len() != (self.classes - 1) * vectors {
            return Err(invalid(format!(
                "{} coefficients are not those of {vectors} vectors of {} classes",
                coefficients.len(),
                self.classes
            )));
        }
        let mut weights = Vec::new();
        for [i, j] in &self.list {
            weights.extend(
                self.owners
                    .iter()
                    .enumerate()
                    .map(|(v, owner)| match owner {
                        owner if owner == i => coefficients[(j - 1) * vectors + v],
                        owner if owner == j => coefficients[i * vectors + v],
                        _ => 0.0,
                    }),
            );
        }
        Ok(Tensor::from_slice(
            &weights,
            [self.list.len() as i64, vectors as i64],
        ))
    }

    /// The number of pairs `[n, classes]` that choose each class. `first_wins` `[n, pairs]` is 1 where a pair chooses its
    /// first.
    fn votes(&self, first_wins: &Tensor) -> Tensor {
        let side = |end: usize| {
            let list: Vec<i64> = self.list.iter().map(|pair| pair[end] as i64).collect();
            Tensor::from(list)
                .one_hot(self.classes as i64)
                .to_dtype(DType::F32)
        };
        first_wins.matmul(side(0)) + (1.0 - first_wins).matmul(side(1))
    }

    /// The probabilities `[n, classes]` from those `[n, pairs]` of the first class of each pair, by the second method
    /// of Wu, Lin and Weng, Probability Estimates for Multi-class Classification by Pairwise Coupling.
    fn probabilities(&self, first_chances: &Tensor) -> Result<Tensor> {
        let (k, pairs) = (self.classes, self.list.len());
        // The column of each entry among those of the first classes, of the second ones, and zeros.
        let mut columns = vec![2 * pairs as i64; k * k];
        for (pair, [i, j]) in self.list.iter().enumerate() {
            columns[i * k + j] = pair as i64;
            columns[j * k + i] = (pairs + pair) as i64;
        }
        let zero = first_chances.narrow(1, 0, 1).zeros_like();
        let chances = cat([first_chances.clone(), 1.0 - first_chances, zero], 1);
        let rows = first_chances.dims()[0].clone();
        let size = Dim::Const(k as i64);
        // The probability of i beside j at [n, i, j].
        let r = chances.index_select(1, Tensor::from(columns));
        let r = r.reshape(vec![rows.clone(), size.clone(), size.clone()]);
        let squares = (&r * &r).sum(1).unsqueeze(1);
        let q = Tensor::eye(k as i64, DType::F32) * squares - &r * r.transpose(1, 2);
        let p = Tensor::full(vec![rows.clone(), size], 1.0 / k as f64, DType::F32);
        let active = Tensor::full(vec![rows, Dim::ONE], true, DType::Bool);
        let (p, _) = while_loop_with(
            (p, active),
            WhileLoop::new().max_trips(MAX_TURNS.max(k as i64)),
            |(_, active)| active.any(()),
            |(before, active)| {
                let mut qp = (&q * before.unsqueeze(1)).sum(2);
                let mut pqp = (&before * &qp).sum(keep(1));
                let error = (&qp - &pqp).abs().amax(keep(1));
                let active = active.logical_and(error.ge(0.005 / k as f64));
                let mut p = before.clone();
                for t in 0..k as i64 {
                    let (row, diagonal) = (q.select(1, t), q.select(1, t).narrow(1, t, 1));
                    let qp_t = qp.narrow(1, t, 1);
                    let step = (&pqp - &qp_t) / &diagonal;
                    let scale = &step + 1.0;
                    pqp = (pqp + &step * (&step * &diagonal + qp_t * 2.0)) / (&scale * &scale);
                    qp = (qp + &step * row) / &scale;
                    let moved = Tensor::from(t).one_hot(k as i64).to_dtype(DType::F32);
                    p = (p + &step * moved) / scale;
                }
                Ok::<_, Error>((p.where_cond(&active, before), active))
            },
        )?;
        Ok(p)
    }
}
