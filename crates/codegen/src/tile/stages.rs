//! The stages of a kernel, and the values that they recompute or keep.

use crate::affine::estimate;
use crate::kir::{Access, Expr, Kernel, Store, Val};
use kiln_base::{DType, Dim};
use kiln_plan::tile::{Schedule, TILE};

/// The work of one stage, before registers are allocated.
pub(crate) struct StagePlan {
    pub over_inner: bool,
    /// Values to define, ascending.
    pub defs: Vec<ValueSource>,
    pub stores: Vec<Store>,
}

/// The definition of a value in a stage.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueSource {
    /// Computed by its expression, and stored to its slot, if it has one.
    Compute(Val),
    /// Loaded from its slot.
    InSlot(Val),
}

/// The values that may be stored to slots, for a later loop over the inner points.
pub(crate) struct SlotPolicy {
    /// For each value, true if it is worth a slot.
    pub expensive: Vec<bool>,
    /// The maximum number of slots.
    pub max_slots: u16,
}

/// The maximum number of inner points that a row slot holds.
const MAX_SLOT_POINTS: i64 = 1 << 18;
/// The maximum number of row slots of a kernel.
const MAX_SLOTS: u16 = 8;

pub(super) fn slot_policy(kernel: &Kernel, schedule: Schedule) -> SlotPolicy {
    SlotPolicy {
        expensive: expensive(kernel),
        max_slots: if can_keep(kernel, schedule) {
            MAX_SLOTS
        } else {
            0
        },
    }
}

/// Returns the pairs (read argument, written argument) of a kernel that may alias, with its default schedule.
pub(crate) fn in_place(kernel: &Kernel) -> Vec<(usize, usize)> {
    in_place_with(kernel, schedule(kernel))
}

/// Returns the pairs of arguments of an epilogue that may alias, likewise.
pub(crate) fn in_place_epilogue(kernel: &Kernel) -> Vec<(usize, usize)> {
    in_place_with(kernel, epilogue_schedule(kernel))
}

pub(super) fn in_place_with(kernel: &Kernel, schedule: Schedule) -> Vec<(usize, usize)> {
    match kernel.inner.is_empty() {
        // There is only one stage.
        true => (kernel.stores.iter())
            .flat_map(|s| aliasing_pairs(kernel, s))
            .collect(),
        false => may_alias(kernel, &plan(kernel, &slot_policy(kernel, schedule)).0),
    }
}

/// The maximum length of rows for which tiles are cut across rows in any layout: a loop per row costs some 50 ns.
const MAX_SHORT_ROW: i64 = 32;
/// The same for kernels with one loop over each row.
const MAX_SHORT_SUM: i64 = 96;

/// Returns the schedule whose tiles run along the axes that are contiguous in more accesses, unless they are short.
pub(super) fn schedule(kernel: &Kernel) -> Schedule {
    let (Some(_), outer) = (kernel.inner.last(), kernel.axes.len()) else {
        return Schedule::Lanes;
    };
    if outer == 0 || kernel.serial > 0 {
        return Schedule::Rows;
    }
    let points = |dims: &[Dim]| dims.iter().fold(1i64, |n, d| n.saturating_mul(estimate(d)));
    let (rows, row) = (points(&kernel.axes), points(&kernel.inner));
    let is_inside = |a: &Access| a.strides[outer..].iter().any(|s| !s.is(0));
    let (mut along_inner, mut along_axes) = (0, 0);
    for a in &kernel.accesses {
        if !is_inside(a) {
            continue;
        }
        along_inner += a.strides.last().is_some_and(|s| s.is(1)) as usize;
        along_axes += a.strides[outer - 1].is(1) as usize;
    }
    let mut stores = kernel
        .stores
        .iter()
        .map(|s| &kernel.accesses[usize::from(s.access)]);
    let is_one_sum = depths(kernel).iter().all(|d| *d <= 1) && !stores.any(is_inside);
    let max_row = [MAX_SHORT_ROW, MAX_SHORT_SUM][usize::from(is_one_sum)];
    // The inner size must be known.
    let is_known = kernel.inner.iter().all(|d| d.as_const().is_some());
    if is_known && row <= max_row && rows >= 4 {
        Schedule::Lanes
    } else if along_inner > along_axes || rows < 16 {
        Schedule::Rows
    } else if along_axes > along_inner || rows >= 64 {
        Schedule::Lanes
    } else {
        Schedule::Rows
    }
}

/// Returns the depth of each value: the longest chain of reductions in its computation.
fn depths(kernel: &Kernel) -> Vec<usize> {
    let mut depth: Vec<usize> = Vec::with_capacity(kernel.body.len());
    for def in &kernel.body {
        let mut d = 0;
        def.expr.operands(|o| d = d.max(depth[o.index()]));
        depth.push(d + def.expr.is_reduction() as usize);
    }
    depth
}

/// Returns the stages of a kernel, and the slot of each value that is kept.
pub(crate) fn plan(kernel: &Kernel, policy: &SlotPolicy) -> (Vec<StagePlan>, Vec<Option<u16>>) {
    let varies = kernel.varies_inside();
    let depth = depths(kernel);
    let outer = kernel.axes.len();
    let is_const = |v: Val| matches!(kernel.body[v.index()].expr, Expr::Const(_));
    let is_inside = |s: &Store| {
        let a = &kernel.accesses[s.access as usize];
        varies[s.value.index()] || a.strides[outer..].iter().any(|s| !s.is(0))
    };
    let last = depth.iter().copied().max().unwrap_or(0);
    let mut slots: Vec<Option<u16>> = vec![None; kernel.body.len()];
    let mut next_slot = 0u16;
    let mut computed = vec![false; kernel.body.len()]; // in an earlier inner loop
    let mut plans = Vec::new();
    for p in 0..=last {
        let is_per_row = |v: &Val| {
            let i = v.index();
            let is_reduction = kernel.body[i].expr.is_reduction();
            !varies[i] && depth[i] == p && !is_reduction && !is_const(*v)
        };
        let values = (0..kernel.body.len() as u32).map(Val).filter(is_per_row);
        plans.push(StagePlan {
            over_inner: false,
            defs: values.map(ValueSource::Compute).collect(),
            stores: stores_of(kernel, |s| !is_inside(s) && depth[s.value.index()] == p),
        });
        let stores = stores_of(kernel, |s| is_inside(s) && depth[s.value.index()] == p);
        let mut needed = vec![false; kernel.body.len()];
        for s in &stores {
            needed[s.value.index()] = true;
        }
        for (i, def) in kernel.body.iter().enumerate() {
            needed[i] |= def.expr.is_reduction() && depth[i] == p + 1;
        }
        let mut defs = Vec::new();
        for i in (0..kernel.body.len()).rev() {
            let v = Val(i as u32);
            let is_reduction = kernel.body[i].expr.is_reduction() && depth[i] == p + 1;
            if !needed[i] || !(varies[i] || is_reduction) {
                continue;
            }
            let is_keepable = computed[i] && policy.expensive[i] && without_casts(kernel, v) == v;
            if is_keepable && (slots[i].is_some() || next_slot < policy.max_slots) {
                if slots[i].is_none() {
                    slots[i] = Some(next_slot);
                    next_slot += 1;
                }
                defs.push(ValueSource::InSlot(v));
                continue;
            }
            defs.push(ValueSource::Compute(v));
            kernel.body[i].expr.operands(|o| needed[o.index()] = true);
        }
        defs.reverse();
        for d in &defs {
            if let ValueSource::Compute(v) = d {
                computed[v.index()] = true;
            }
        }
        plans.push(StagePlan {
            over_inner: true,
            defs,
            stores,
        });
    }
    plans.retain(|p| !p.defs.is_empty() || !p.stores.is_empty());
    (plans, slots)
}

fn stores_of(kernel: &Kernel, is_selected: impl Fn(&Store) -> bool) -> Vec<Store> {
    kernel
        .stores
        .iter()
        .filter(|s| is_selected(s))
        .cloned()
        .collect()
}

/// True if a slot for every inner point (of a tile of rows, with lanes) stays small.
fn can_keep(kernel: &Kernel, schedule: Schedule) -> bool {
    let row = kernel
        .inner
        .iter()
        .fold(1i64, |n, d| n.saturating_mul(estimate(d)));
    match schedule {
        Schedule::Rows => row <= MAX_SLOT_POINTS,
        Schedule::Lanes => row.saturating_mul(TILE as i64) <= MAX_SLOT_POINTS / 2,
    }
}

/// For each value, true if it varies inside and is costly to compute.
pub(crate) fn expensive(kernel: &Kernel) -> Vec<bool> {
    let varies = kernel.varies_inside();
    let mut expensive: Vec<bool> = Vec::with_capacity(kernel.body.len());
    for (i, def) in kernel.body.iter().enumerate() {
        let mut d = def.expr.is_expensive();
        if !def.expr.is_reduction() {
            def.expr.operands(|o| d |= expensive[o.index()]);
        }
        expensive.push(d && varies[i]);
    }
    expensive
}

/// Returns the pairs of a read and a written argument of one dtype for which every load is at the address of the store,
/// and in its stage or before.
pub(crate) fn may_alias(kernel: &Kernel, plans: &[StagePlan]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    for (stage, plan) in plans.iter().enumerate() {
        let is_read_later = |pair: &(usize, usize)| {
            let read = Some(pair.0);
            let mut defs = plans[stage + 1..].iter().flat_map(|p| &p.defs);
            defs.any(|d| matches!(d, ValueSource::Compute(v) if kernel.loaded_arg(*v) == read))
        };
        let stage_pairs = plan.stores.iter().flat_map(|s| aliasing_pairs(kernel, s));
        pairs.extend(stage_pairs.filter(|pair| !is_read_later(pair)));
    }
    pairs
}

/// Returns the read arguments of a store's dtype that are loaded only at its address, each with the argument that it
/// writes.
fn aliasing_pairs(kernel: &Kernel, store: &Store) -> impl Iterator<Item = (usize, usize)> {
    let to = &kernel.accesses[store.access as usize];
    let written = usize::from(to.arg);
    let has_same_address = move |v: Val| match &kernel.body[v.index()].expr {
        Expr::Load { access } => {
            let from = &kernel.accesses[*access as usize];
            from.bounds.is_empty() && from.offset == to.offset && from.strides == to.strides
        }
        _ => false,
    };
    let is_elementwise = move |read: usize| {
        let vals = (0..kernel.body.len() as u32).map(Val);
        let loads = vals.filter(|v| kernel.loaded_arg(*v) == Some(read));
        let mut loads = loads.peekable();
        loads.peek().is_some() && loads.all(has_same_address)
    };
    let args = kernel.args.iter().enumerate();
    let args = args.filter(move |(_, a)| !a.written && a.dtype == kernel.args[written].dtype);
    let pairs = args.filter(move |(read, _)| store.combine.is_none() && is_elementwise(*read));
    pairs.map(move |(read, _)| (read, written))
}

/// True if a cast from `from` changes no value, as kernels compute it.
pub(crate) fn is_no_op(from: DType, to: DType) -> bool {
    if from == to {
        return true;
    }
    if from.compute() != to.compute() {
        return false;
    }
    match (from.int_range(), to.int_range()) {
        (Some(_), Some(_)) if from.size() == 8 && to.size() == 8 => true,
        (Some(a), Some(b)) => b.0 <= a.0 && a.1 <= b.1,
        _ => to == DType::F32,
    }
}

/// Returns the operand of a chain of casts without effect, or the value itself.
pub(crate) fn without_casts(kernel: &Kernel, mut v: Val) -> Val {
    loop {
        let def = &kernel.body[v.index()];
        match def.expr {
            Expr::Convert { a, from } if is_no_op(from, def.dtype) => v = a,
            _ => return v,
        }
    }
}

/// Returns the schedule of an epilogue of a product, whose blocks hold whole rows.
pub(super) fn epilogue_schedule(kernel: &Kernel) -> Schedule {
    match kernel.inner.is_empty() {
        true => Schedule::Lanes,
        false => Schedule::Rows,
    }
}
