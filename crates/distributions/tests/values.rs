//! Densities, moments, entropies and divergences against sums over a fine grid, and samples against their moments.

use kiln_distributions::*;
use kiln_tensor::{AsTensor, DType, Result, Tensor, manual_seed};

fn scalar(x: f64) -> Tensor {
    Tensor::scalar(x)
}

fn close(name: &str, got: &Tensor, want: f64, tolerance: f64) -> Result<()> {
    let got = got.item::<f64>()?;
    assert!((got - want).abs() <= tolerance, "{name}: {got}, not {want}");
    Ok(())
}

/// A continuous distribution against integrals over `[low, high]` by the midpoint rule.
fn continuous<D>(name: &str, p: &D, q: &D, low: f64, high: f64) -> Result<()>
where
    D: Reparametrized + KlDivergence,
{
    let points = 1_000_000;
    let step = (high - low) / points as f64;
    let x = Tensor::arange_dtype(0, points, 1, DType::F64) * step + (low + step / 2.0);
    let (at, other) = (p.log_prob(&x), q.log_prob(&x));
    let integral =
        |y: Tensor| -> Result<f64> { (at.exp() * y).sum(()).item::<f64>().map(|s| s * step) };
    close(name, &scalar(integral(x.ones_like())?), 1.0, 1e-4)?;
    let mean = integral(x.clone())?;
    close(name, &p.mean(), mean, 1e-3)?;
    let variance = integral((&x - mean).square())?;
    close(name, &p.variance(), variance, 5e-3)?;
    close(name, &p.stddev(), variance.sqrt(), 5e-3)?;
    // No density, nothing to add.
    let nothing = at.isneginf();
    close(
        name,
        &p.entropy(),
        integral(-at.masked_fill(&nothing, 0.0))?,
        1e-3,
    )?;
    let difference = (&at - other).masked_fill(&nothing, 0.0);
    close(name, &kl_divergence(p, q), integral(difference)?, 1e-3)?;
    let samples = p.sample([400, 500]);
    assert_eq!(samples.shape()?, [400, 500]);
    close(name, &samples.mean(()), mean, 0.02 * variance.sqrt())?;
    close(
        name,
        &samples.std(()),
        variance.sqrt(),
        0.05 * variance.sqrt(),
    )
}

#[test]
fn continuous_distributions_fit_their_densities() -> Result<()> {
    manual_seed(3);
    let [a, b, c, d] = [0.3, 0.7, -0.4, 1.1].map(scalar);
    continuous(
        "Normal",
        &Normal::new(&a, &b),
        &Normal::new(&c, &d),
        -8.0,
        8.0,
    )?;
    let scales = [0.4, 0.5].map(scalar);
    let (p, q) = (
        LogNormal::new(&a, &scales[0]),
        LogNormal::new(&c, &scales[1]),
    );
    continuous("LogNormal", &p, &q, 1e-9, 40.0)?;
    continuous(
        "Laplace",
        &Laplace::new(&a, &b),
        &Laplace::new(&c, &d),
        -20.0,
        20.0,
    )?;
    continuous(
        "Gumbel",
        &Gumbel::new(&a, &b),
        &Gumbel::new(&c, &d),
        -8.0,
        30.0,
    )?;
    continuous(
        "Uniform",
        &Uniform::new(&a, &b),
        &Uniform::new(&c, &d),
        -1.0,
        2.0,
    )?;
    continuous(
        "Exponential",
        &Exponential::new(&b),
        &Exponential::new(&d),
        1e-9,
        40.0,
    )
}

#[test]
fn quantiles_invert_the_normal_distribution_function() -> Result<()> {
    let normal = Normal::new(scalar(1.0), scalar(2.0));
    close(
        "cdf",
        &normal.cdf(scalar(1.0 + 2.0 * 1.959_963_984_540_054)),
        0.975,
        1e-12,
    )?;
    close("icdf", &normal.icdf(normal.cdf(scalar(-0.5))), -0.5, 1e-9)
}

#[test]
fn classes_fit_their_probabilities() -> Result<()> {
    manual_seed(5);
    let weights = [[1.0f64, 2.0, 1.0], [0.0, 3.0, 1.0]];
    let p = Categorical::new(Tensor::from(weights));
    let draws = p.sample(20_000);
    assert_eq!(draws.shape()?, [20_000, 2]);
    assert_eq!(draws.dtype(), DType::I64);
    let shares = draws.one_hot(3).to_dtype(DType::F64).mean(0);
    let wrong = (shares - &p.probs).abs().amax(()).item::<f64>()?;
    assert!(wrong < 0.015, "{wrong}");
    // Three values for each of two batches.
    let log = p.log_prob(Tensor::from([[0i64], [1], [2]]));
    assert_eq!(log.shape()?, [3, 2]);
    close("log_prob", &log.i((1, 1)), 0.75f64.ln(), 1e-12)?;
    close("entropy", &p.entropy().i(0), 1.5 * 2f64.ln(), 1e-12)?;
    let scores = Tensor::from([[0.0f64, f64::NEG_INFINITY, 3f64.ln()]]).requires_grad_(true);
    let q = Categorical::from_logits(&scores);
    let entropy = q.entropy();
    close(
        "entropy",
        &entropy,
        2.0 * 2f64.ln() - 0.75 * 3f64.ln(),
        1e-12,
    )?;
    entropy.backward()?;
    let Some(slope) = scores.grad() else {
        panic!("the scores are a leaf")
    };
    assert!(slope.isfinite().all(()).item::<bool>()?, "{slope}");
    close("divergence", &kl_divergence(&p, &p).sum(()), 0.0, 1e-12)
}

#[test]
fn coins_fit_their_probabilities() -> Result<()> {
    manual_seed(7);
    let (p, q) = (
        Bernoulli::new(scalar(0.2)),
        Bernoulli::from_logits(scalar(0.0)),
    );
    let share = p.sample([100, 100]).mean(());
    close("sample", &share, 0.2, 0.015)?;
    close(
        "log_prob of 1",
        &p.log_prob(scalar(1.0)),
        0.2f64.ln(),
        1e-12,
    )?;
    close(
        "log_prob of 0",
        &p.log_prob(scalar(0.0)),
        0.8f64.ln(),
        1e-12,
    )?;
    let entropy = -(0.2 * 0.2f64.ln() + 0.8 * 0.8f64.ln());
    close("entropy", &p.entropy(), entropy, 1e-12)?;
    close(
        "divergence",
        &kl_divergence(&p, &q),
        2f64.ln() - entropy,
        1e-12,
    )?;
    close("variance", &p.variance(), 0.16, 1e-12)?;
    let certain = Bernoulli::new(Tensor::from([0.0f32, 1.0])).log_prob(Tensor::from([0.0f32, 1.0]));
    assert!(certain.abs().amax(()).item::<f32>()? < 1e-6);
    Ok(())
}

#[test]
fn gradients_flow_through_reparametrised_samples_alone() -> Result<()> {
    let (mean, scale) = (
        scalar(1.0).requires_grad_(true),
        scalar(2.0).requires_grad_(true),
    );
    let event = Independent::new(Normal::new(&mean, &scale).expanded(3), 1);
    let sample = event.rsample([5]);
    assert_eq!(sample.shape()?, [5, 3]);
    assert_eq!(event.log_prob(&sample).shape()?, [5]);
    assert!(!event.sample(()).requires_grad());
    sample.sum(()).backward()?;
    // d(mean + scale · z) is 1 and z.
    let noise = ((&sample - 1.0) / 2.0).sum(()).item::<f64>()?;
    let slopes =
        [&mean, &scale].map(|x| x.grad().map_or(f64::NAN, |g| g.item().unwrap_or(f64::NAN)));
    assert_eq!(slopes[0], 15.0);
    assert!((slopes[1] - noise).abs() < 1e-9);
    Ok(())
}

/// A distribution of several numbers that are distributed alike.
trait Expanded {
    fn expanded(&self, count: i64) -> Self;
}

impl Expanded for Normal {
    fn expanded(&self, count: i64) -> Normal {
        Normal::new(
            self.loc.as_tensor().expand([count]),
            self.scale.as_tensor().expand([count]),
        )
    }
}
