//! The division of rows and inner points among the threads of a block.

use super::vector::Vector;
use crate::affine::estimate;
use crate::kir::{Expr, Kernel};
use crate::schedule::Schedule;
use crate::tile::{SlotPolicy, expensive};
use kiln_base::{Gpu, numel};

/// The coordinate of a thread that varies fastest with its number.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The lane: neighbouring threads read neighbouring inner points.
    InnerFirst,
    /// The row: neighbouring threads read neighbouring rows.
    RowsFirst,
}

/// The shape of a block: `rows` times `lanes` threads, where the lanes of a row share its inner points.
pub(super) struct Shape {
    pub order: Order,
    pub rows: u32,
    /// A power of 2.
    pub lanes: u32,
    /// The inner points that a thread computes at once.
    pub vector: Vector,
    /// The number of iterations of a thread's loop over its points, if it is known and small.
    pub trips: Option<u32>,
    /// The values that are kept in registers between loops.
    pub keep: SlotPolicy,
}

/// The maximum number of iterations of an unrolled loop.
const MAX_UNROLLED_TRIPS: i64 = 8;
/// The maximum number of accumulators of a thread that combines rows.
const MAX_ROW_ACCUMULATORS: u32 = 16;
/// The number of threads of a block of short rows.
const THREADS: u32 = 256;
/// The number of rows of a block whose neighbouring threads read neighbouring rows.
const ROWS_FIRST_ROWS: u32 = 32;

/// Returns the default shape of a kernel with its schedule. With `all`, returns others too, with more or fewer threads
/// per row, and with values recomputed instead of kept for later loops.
pub(super) fn shapes(kernel: &Kernel, gpu: &Gpu, all: bool) -> Vec<(Schedule, Shape)> {
    let default = Shape::of(kernel, gpu);
    let (order, vector, lanes) = (default.order, default.vector.clone(), default.lanes);
    let keeps_values = default.keep.max_slots > 0;
    let mut shapes = vec![(schedule(lanes, false), default)];
    if !all {
        return shapes;
    }
    for threads in other_lanes(kernel, gpu, order, &vector, lanes) {
        let shape = Shape::new(kernel, order, vector.clone(), threads);
        if kernel.serial == 0
            || shape.trips.unwrap_or(0) * shape.vector.width <= MAX_ROW_ACCUMULATORS
        {
            shapes.push((schedule(threads, false), shape));
        }
    }
    let mut recomputing = Shape::new(kernel, order, vector, lanes);
    recomputing.keep.max_slots = 0;
    let slots = |shape: &Shape| crate::tile::plan(kernel, &shape.keep).1;
    if keeps_values && slots(&shapes[0].1) != slots(&recomputing) {
        shapes.push((schedule(lanes, true), recomputing));
    }
    shapes
}

fn schedule(threads: u32, again: bool) -> Schedule {
    Schedule::Rows { threads, again }
}

impl Shape {
    fn of(kernel: &Kernel, gpu: &Gpu) -> Shape {
        let parallel = kernel.axes.len() - kernel.serial;
        let rows = estimate(&numel(&kernel.axes[..parallel])).max(1);
        let order = order(kernel);
        let vector = match order {
            Order::InnerFirst => Vector::along(kernel, kernel.axes.len() + kernel.inner.len() - 1),
            Order::RowsFirst => Vector::scalar(kernel),
        };
        let steps = steps(kernel, &vector);
        let lanes = match order {
            Order::InnerFirst => inner_lanes(kernel, gpu, rows, steps),
            Order::RowsFirst => {
                let wanted = power_of_2(gpu.filled() / rows)
                    .min(power_of_2(steps / 4))
                    .clamp(1, 32) as u32;
                wanted.min(max_row_lanes(kernel, gpu))
            }
        };
        Shape::new(kernel, order, vector, lanes)
    }

    /// Returns the shape of a block of `threads` threads whose rows are in shared memory.
    pub fn of_block(kernel: &Kernel, threads: u32) -> Shape {
        let points = estimate(&numel(&kernel.inner));
        let lanes = power_of_2(points).clamp(2, 32) as u32;
        let (vector, trips) = (Vector::scalar(kernel), trips(kernel, lanes, 1));
        Shape {
            order: Order::InnerFirst,
            rows: threads / lanes,
            lanes,
            keep: slot_policy(kernel, &vector, trips, threads),
            vector,
            trips,
        }
    }

    /// Returns a shape with `lanes` lanes.
    fn new(kernel: &Kernel, order: Order, vector: Vector, lanes: u32) -> Shape {
        let rows = match order {
            // A block with more than a warp per row has only one row: its threads wait for each other.
            Order::InnerFirst if lanes > 32 => 1,
            Order::InnerFirst => THREADS / lanes,
            Order::RowsFirst if lanes == 1 => THREADS,
            Order::RowsFirst => ROWS_FIRST_ROWS,
        };
        let trips = trips(kernel, lanes, vector.width);
        let keep = slot_policy(kernel, &vector, trips, rows * lanes);
        Shape {
            order,
            rows,
            lanes,
            vector,
            trips,
            keep,
        }
    }
}

/// Returns the number of vectors in a row.
fn steps(kernel: &Kernel, vector: &Vector) -> i64 {
    let length = estimate(&numel(&kernel.inner)).max(1);
    (length + i64::from(vector.width) - 1) / i64::from(vector.width)
}

/// Returns the maximum number of lanes for which the accumulators of [`Order::RowsFirst`] fit into shared memory.
fn max_row_lanes(kernel: &Kernel, gpu: &Gpu) -> u32 {
    let lanes = gpu.shared / (ROWS_FIRST_ROWS * shared_bytes(kernel).max(1));
    (power_of_2(i64::from(lanes) + 1) as u32 / 2).clamp(1, 32)
}

/// Returns alternatives to the default number of lanes: 1/16, 1/4, 4 and 16 times as many.
fn other_lanes(
    kernel: &Kernel,
    gpu: &Gpu,
    order: Order,
    vector: &Vector,
    default: u32,
) -> Vec<u32> {
    let max_lanes = match order {
        Order::InnerFirst => power_of_2(steps(kernel, vector)).min(1024) as u32,
        Order::RowsFirst => max_row_lanes(kernel, gpu),
    };
    let lanes = [default / 16, default / 4, default * 4, default * 16].into_iter();
    lanes.filter(|l| (1..=max_lanes).contains(l)).collect()
}

/// Returns the order in which more accesses of neighbouring threads are contiguous.
fn order(kernel: &Kernel) -> Order {
    let outer = kernel.axes.len();
    if outer == 0 || kernel.serial > 0 {
        return Order::InnerFirst;
    }
    let (mut along_inner, mut along_rows) = (0, 0);
    for a in &kernel.accesses {
        if a.strides[outer..].iter().all(|s| s.is(0)) {
            continue;
        }
        along_inner += a.strides.last().is_some_and(|s| s.is(1)) as usize;
        along_rows += a.strides[outer - 1].is(1) as usize;
    }
    match along_rows > along_inner {
        true => Order::RowsFirst,
        false => Order::InnerFirst,
    }
}

/// Returns the number of lanes of a row of `steps` vectors.
fn inner_lanes(kernel: &Kernel, gpu: &Gpu, rows: i64, steps: i64) -> u32 {
    if numel(&kernel.inner).as_const().is_none() {
        return 128;
    }
    if steps <= 4 && rows * steps >= gpu.filled() {
        return 1;
    }
    let lanes_of_4_steps = power_of_2((steps + 3) / 4);
    let mut lanes = power_of_2(steps).min(32).max(lanes_of_4_steps).min(1024);
    while rows * lanes < gpu.filled() && lanes < power_of_2(steps) && lanes < 1024 {
        lanes *= 2;
    }
    lanes as u32
}

/// Returns the smallest power of 2 that is at least `n`.
fn power_of_2(n: i64) -> i64 {
    (n.max(1) as u64).next_power_of_two() as i64
}

/// Returns the bytes of a lane's accumulators in shared memory.
fn shared_bytes(kernel: &Kernel) -> u32 {
    let bytes = kernel.body.iter().map(|def| match def.expr {
        Expr::Reduce { .. } => def.dtype.compute().size(),
        Expr::ArgReduce { .. } => 16,
        _ => 0,
    });
    bytes.sum::<usize>() as u32
}

/// Returns the number of iterations of a thread's loop over inner points, if unrolling does not make it too long.
fn trips(kernel: &Kernel, lanes: u32, width: u32) -> Option<u32> {
    let points = numel(&kernel.inner).as_const()?;
    let points_per_trip = i64::from(lanes * width);
    let trips = (points + points_per_trip - 1) / points_per_trip;
    let unrolled_values = trips * i64::from(width) * kernel.body.len() as i64;
    let is_short = (1..=MAX_UNROLLED_TRIPS).contains(&trips) && unrolled_values <= 1024;
    (is_short || kernel.serial > 0).then_some(trips as u32)
}

/// Returns the policy that keeps loads and costly values, as far as the registers go.
fn slot_policy(kernel: &Kernel, vector: &Vector, trips: Option<u32>, threads: u32) -> SlotPolicy {
    let varies = kernel.varies_inside();
    let mut expensive = expensive(kernel);
    for (i, def) in kernel.body.iter().enumerate() {
        let is_load = matches!(def.expr, Expr::Load { .. } | Expr::LoadAt { .. });
        expensive[i] |= is_load && varies[i];
    }
    let budget = if threads > 512 { 32 } else { 64 };
    let max_slots = trips.map_or(0, |trips| budget / (trips * vector.width));
    SlotPolicy {
        expensive,
        max_slots: max_slots as u16,
    }
}
