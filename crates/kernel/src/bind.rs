//! Binding of a tile program: symbols get values, and every access is proven to be in bounds.

use crate::affine::{Affine, Limit, eval, extent, product, stays_inside};
use crate::bound::{Bound, BoundAccess, BoundDynamic};
use crate::check;
use crate::error::{Result, damaged};
use kiln_base::Scalar;
use kiln_plan::tile::{Access, Inst, Schedule, SerialPoints, TileProgram};

/// Checks `program` and substitutes its symbols. `lens` are the lengths of the argument buffers.
///
/// # Errors
/// If the program is contradictory, or an access may be outside its argument.
pub fn bind<'a>(program: &'a TileProgram, values: &[i64], lens: &[i64]) -> Result<Bound<'a>> {
    if lens.len() != program.args.len() {
        let (expected, actual) = (program.args.len(), lens.len());
        return Err(damaged!(
            "{} takes {expected} arguments, {actual} given",
            program.name
        ));
    }
    check::check_types(program)?;
    let axes: Vec<i64> = extents(&program.axes, values)?;
    let inner: Vec<i64> = extents(&program.inner, values)?;
    let all_extents: Vec<i64> = axes.iter().chain(&inner).copied().collect();
    product(&all_extents.iter().map(|e| *e.max(&1)).collect::<Vec<_>>())?;

    let mut accesses = program
        .accesses
        .iter()
        .map(|a| bind_access(a, all_extents.len(), values, lens.len()))
        .collect::<Result<Vec<_>>>()?;
    let mut dynamics = Vec::new();
    for inst in program.stages.iter().flat_map(|s| &s.code) {
        match inst {
            Inst::Index {
                offset, strides, ..
            } => accesses.push(BoundAccess {
                arg: None,
                address: Affine::new(offset, strides, all_extents.len(), values)?,
                limits: vec![],
                fill: Scalar::Int(0),
            }),
            Inst::LoadAt { dynamic, .. } => dynamics.push(
                dynamic
                    .iter()
                    .map(|d| {
                        Ok(BoundDynamic {
                            index: d.index.0.into(),
                            stride: eval(&d.stride, values)?,
                            extent: extent(&d.extent, values)?,
                            site: d.site,
                        })
                    })
                    .collect::<Result<_>>()?,
            ),
            _ => {}
        }
    }
    let parallel = check_ranges(program, &mut accesses, &axes, &inner, lens)?;
    let covered =
        (0..lens.len()).map(|arg| covers(program, &accesses, (&axes, &inner), arg, lens[arg]));
    let covered = covered.collect();
    let serial = axes[axes.len() - usize::from(program.serial)..]
        .iter()
        .product();
    let (outer, lane) = split_axes(program.schedule, &axes, &inner, &mut accesses);
    Ok(Bound {
        program,
        outer,
        lane,
        accesses,
        dynamics,
        lens: lens.to_vec(),
        parallel,
        serial,
        covered,
    })
}

fn extents(dims: &[kiln_base::Dim], values: &[i64]) -> Result<Vec<i64>> {
    dims.iter().map(|d| extent(d, values)).collect()
}

fn bind_access(a: &Access, rank: usize, values: &[i64], count: usize) -> Result<BoundAccess> {
    if a.arg as usize >= count {
        return Err(damaged!("an access names argument {} of {count}", a.arg));
    }
    let limits = a.bounds.iter().map(|b| Limit::new(b, rank, values));
    Ok(BoundAccess {
        arg: Some(a.arg as usize),
        address: Affine::new(&a.offset, &a.strides, rank, values)?,
        limits: limits.collect::<Result<_>>()?,
        fill: a.fill,
    })
}

/// Proves every load and store in range. Adds a limit if that needs a check at run time. Returns true if
/// all stores are to different elements.
fn check_ranges(
    program: &TileProgram,
    accesses: &mut [BoundAccess],
    axes: &[i64],
    inner: &[i64],
    lens: &[i64],
) -> Result<bool> {
    let mut full: Vec<i64> = axes.iter().chain(inner).copied().collect();
    let mut parallel = true;
    let mut index = program.accesses.len();
    for stage in &program.stages {
        for (e, inner) in full[axes.len()..].iter_mut().zip(inner) {
            *e = if stage.over_inner { *inner } else { 1 };
        }
        for inst in &stage.code {
            let (access_index, dynamic) = match inst {
                Inst::Load { access, .. } | Inst::Store { access, .. } => (*access as usize, false),
                Inst::LoadAt { access, .. } => (*access as usize, true),
                Inst::Index { .. } => {
                    index += 1;
                    (index - 1, false)
                }
                _ => continue,
            };
            let a = &mut accesses[access_index];
            a.address
                .checked_range(&full.iter().map(|e| *e.max(&1)).collect::<Vec<_>>())?;
            for l in &a.limits {
                l.value
                    .checked_range(&full.iter().map(|e| *e.max(&1)).collect::<Vec<_>>())?;
            }
            if let (Some(arg), false) = (a.arg, dynamic) {
                confine(a, &full, lens[arg], program)?;
            }
            if let Inst::Store { .. } = inst {
                // One thread executes the stores of a point of `axes`, in order.
                let outer = Affine {
                    offset: 0,
                    strides: a.address.strides[..axes.len()].to_vec(),
                };
                let mut points = full.clone();
                if stage.serial_points != SerialPoints::Every {
                    points[axes.len() - usize::from(program.serial)..axes.len()].fill(1);
                }
                let is_injective = a.address.is_injective(&points);
                parallel &= is_injective || inner.is_empty() && outer.is_injective(axes);
            }
        }
    }
    Ok(parallel)
}

/// True if stores write every element of an argument of `len` elements, and no load reads it before. Only stores of
/// ranges without gaps are recognised; others count as incomplete.
fn covers(
    program: &TileProgram,
    accesses: &[BoundAccess],
    (axes, inner): (&[i64], &[i64]),
    arg: usize,
    len: i64,
) -> bool {
    let mut ranges: Vec<(i64, i64)> = Vec::new();
    let mut stored: Vec<(&Affine, bool)> = Vec::new();
    for stage in &program.stages {
        let size = |e: &i64| if stage.over_inner { *e } else { 1 };
        let points: Vec<i64> = axes.iter().copied().chain(inner.iter().map(size)).collect();
        for inst in &stage.code {
            match inst {
                Inst::LoadAt { access, .. } if accesses[*access as usize].arg == Some(arg) => {
                    return false;
                }
                Inst::Load { access, .. } if accesses[*access as usize].arg == Some(arg) => {
                    // Stages run in order, so a point may read its own stores.
                    let matching_store = (&accesses[*access as usize].address, stage.over_inner);
                    if !stored.contains(&matching_store) {
                        return false;
                    }
                }
                Inst::Store { access, .. } => {
                    let a = &accesses[*access as usize];
                    let serial = axes.len() - usize::from(program.serial)..axes.len();
                    let depends_on_serial = a.address.strides[serial].iter().any(|s| *s != 0);
                    if stage.serial_points != SerialPoints::Every && depends_on_serial {
                        continue;
                    }
                    let range = a.address.range_without_gaps(&points);
                    if a.arg == Some(arg) && a.limits.is_empty() {
                        ranges.extend(range);
                        stored.push((&a.address, stage.over_inner));
                    }
                }
                _ => {}
            }
        }
    }
    union_end(&mut ranges) >= len
}

/// Returns the end of the gapless union of ranges that starts at 0.
fn union_end(ranges: &mut [(i64, i64)]) -> i64 {
    ranges.sort();
    let extend = |end: i64, (start, stop): &(i64, i64)| match *start <= end {
        true => end.max(*stop),
        false => end,
    };
    ranges.iter().fold(0, extend)
}

/// Proves an access in range, or adds a limit that keeps it there.
fn confine(a: &mut BoundAccess, full: &[i64], len: i64, program: &TileProgram) -> Result<()> {
    if stays_inside(&a.address, &a.limits, full, len) {
        return Ok(());
    }
    if a.limits.is_empty() {
        let (low, high) = a.address.range(full);
        return Err(damaged!(
            "{} touches elements {low}..={high} of an argument of {len}",
            program.name
        ));
    }
    a.limits.push(Limit {
        value: a.address.clone(),
        extent: len,
    });
    Ok(())
}

/// Orders every stride list outer axes first, drops axes of extent 1, and merges stepped axes that are contiguous for
/// every access.
fn split_axes(
    schedule: Schedule,
    axes: &[i64],
    inner: &[i64],
    accesses: &mut [BoundAccess],
) -> (Vec<i64>, Vec<i64>) {
    let rank = axes.len();
    let (outer, lane): (Vec<usize>, Vec<usize>) = match schedule {
        Schedule::Lanes => ((rank..rank + inner.len()).collect(), (0..rank).collect()),
        Schedule::Rows => ((0..rank).collect(), (rank..rank + inner.len()).collect()),
    };
    let extent = |i: usize| if i < rank { axes[i] } else { inner[i - rank] };
    let without_units =
        |list: Vec<usize>| -> Vec<usize> { list.into_iter().filter(|i| extent(*i) != 1).collect() };
    let (outer, lane) = (without_units(outer), without_units(lane));
    let order: Vec<usize> = outer.iter().chain(&lane).copied().collect();
    let for_each_strides = |accesses: &mut [BoundAccess], f: &mut dyn FnMut(&mut Vec<i64>)| {
        for a in accesses {
            f(&mut a.address.strides);
            a.limits.iter_mut().for_each(|l| f(&mut l.value.strides));
        }
    };
    for_each_strides(accesses, &mut |s| {
        *s = order.iter().map(|i| s[*i]).collect()
    });
    let mut outer: Vec<i64> = outer.into_iter().map(extent).collect();
    let mut i = 1;
    while i < outer.len() {
        let mut mergeable = outer[i] > 0;
        for_each_strides(accesses, &mut |s| {
            mergeable &= s[i].checked_mul(outer[i]) == Some(s[i - 1])
        });
        if mergeable {
            for_each_strides(accesses, &mut |s| {
                s.remove(i - 1);
            });
            let removed = outer.remove(i - 1);
            outer[i - 1] *= removed;
        } else {
            i += 1;
        }
    }
    (outer, lane.into_iter().map(extent).collect())
}
