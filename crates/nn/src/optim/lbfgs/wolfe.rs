//! A search along a line for a point where the strong Wolfe conditions hold: the loss has fallen enough, and its
//! slope is flat enough. Bracket first, then zoom (Nocedal and Wright, 2006, algorithms 3.5 and 3.6), with steps by
//! cubic interpolation.

use super::Point;
use kiln_tensor::Result;

/// The share of the decrease predicted by the slope that is enough, and the share of the slope that may be left.
const DECREASE: f64 = 1e-4;
const FLAT: f64 = 0.9;

/// A point on the line.
#[derive(Clone)]
pub struct Trial {
    /// Its distance along the line.
    pub t: f64,
    pub point: Point,
    /// The derivative along the line.
    pub slope: f64,
}

/// Tries points from `t` on. The limits are the number of trials after the first, and the distance of points at which
/// to stop.
pub fn strong_wolfe(
    start: Trial,
    t: f64,
    (limit, closest): (u64, f64),
    trial: &mut dyn FnMut(f64) -> Result<Trial>,
) -> Result<Trial> {
    let promised = |x: &Trial| start.point.loss + DECREASE * x.t * start.slope;
    let is_flat = |x: &Trial| x.slope.abs() <= -FLAT * start.slope;
    let (mut last, mut new) = (start.clone(), trial(t)?);
    let mut tried = 0;
    let mut bracket = loop {
        if tried == limit {
            return Ok(lower_trial([start, new]));
        }
        let rises = tried > 1 && new.point.loss >= last.point.loss;
        if new.point.loss > promised(&new) || rises {
            break [last, new];
        }
        if is_flat(&new) {
            return Ok(new);
        }
        if new.slope >= 0.0 {
            break [last, new];
        }
        let bounds = (new.t + 0.01 * (new.t - last.t), new.t * 10.0);
        let t = interpolate(&last, &new, bounds);
        (last, new) = (new, trial(t)?);
        tried += 1;
    };
    let mut low = lower_index(&bracket);
    let mut near_an_end = false;
    while tried < limit && (bracket[1].t - bracket[0].t).abs() >= closest {
        let ends = (
            bracket[0].t.min(bracket[1].t),
            bracket[0].t.max(bracket[1].t),
        );
        let mut t = interpolate(&bracket[0], &bracket[1], ends);
        // Two points in a row near an end of the bracket, or one at an end, are too slow.
        let margin = 0.1 * (ends.1 - ends.0);
        let is_near = (ends.1 - t).min(t - ends.0) < margin;
        if is_near && (near_an_end || t >= ends.1 || t <= ends.0) {
            t = match (t - ends.1).abs() < (t - ends.0).abs() {
                true => ends.1 - margin,
                false => ends.0 + margin,
            };
            near_an_end = false;
        } else {
            near_an_end = is_near;
        }
        let new = trial(t)?;
        tried += 1;
        if new.point.loss > promised(&new) || new.point.loss >= bracket[low].point.loss {
            bracket[1 - low] = new;
            low = lower_index(&bracket);
            continue;
        }
        if is_flat(&new) {
            return Ok(new);
        }
        if new.slope * (bracket[1 - low].t - bracket[low].t) >= 0.0 {
            bracket[1 - low] = bracket[low].clone();
        }
        bracket[low] = new;
    }
    let [first, second] = bracket;
    Ok(if low == 0 { first } else { second })
}

fn lower_index(bracket: &[Trial; 2]) -> usize {
    usize::from(bracket[0].point.loss > bracket[1].point.loss || bracket[0].point.loss.is_nan())
}

fn lower_trial(bracket: [Trial; 2]) -> Trial {
    let low = lower_index(&bracket);
    let [first, second] = bracket;
    if low == 0 { first } else { second }
}

/// Returns the position of the minimum of the cubic through both points with their slopes, within bounds. Returns the
/// middle of the bounds if there is no minimum.
fn interpolate(a: &Trial, b: &Trial, (lower_bound, high): (f64, f64)) -> f64 {
    let (a, b) = if a.t <= b.t { (a, b) } else { (b, a) };
    let d1 = a.slope + b.slope - 3.0 * (a.point.loss - b.point.loss) / (a.t - b.t);
    let square = d1 * d1 - a.slope * b.slope;
    if square.is_nan() || square < 0.0 {
        return (lower_bound + high) / 2.0;
    }
    let d2 = square.sqrt();
    let share = (b.slope + d2 - d1) / (b.slope - a.slope + 2.0 * d2);
    (b.t - (b.t - a.t) * share).max(lower_bound).min(high)
}
