//! Padded copies of image rows.

use crate::sums::Lane;
use kiln_plan::cost::geometry::{Axis, Geometry, Padded};

/// Copies what the result rows `from..from + rows` at depth `d` need of one channel.
///
/// # Safety
/// `x` is the whole channel; `dst` has room for [`Padded::channel`] elements.
#[inline(always)]
pub(super) unsafe fn fill<T: Lane>(
    p: &Padded,
    g: &Geometry,
    x: *const T,
    (d, from, rows): (i64, i64, i64),
    mut dst: *mut T,
) {
    let [depth, height, width] = &g.axes;
    let within = |y: i64, a: &Axis| (0..a.input).contains(&y);
    for kd in 0..depth.kernel {
        let z = d * depth.stride + kd * depth.dilation - depth.padding;
        for row_phase in 0..p.phases.0 {
            for phase in 0..p.phases.1 {
                let (low, high) = width.inside(phase, 0, p.row);
                let first = phase - width.padding;
                for j in 0..rows + p.halo {
                    let y = (from + j) * height.stride + row_phase - height.padding;
                    // SAFETY: rows end where the plane does at the latest; `inside` keeps the reads
                    // within the input row.
                    unsafe {
                        let to = dst.offset((j * p.width) as isize);
                        if !within(z, depth) || !within(y, height) || low == high {
                            (0..p.row).for_each(|i| *to.offset(i as isize) = T::ZERO);
                            continue;
                        }
                        (0..low).for_each(|i| *to.offset(i as isize) = T::ZERO);
                        (high..p.row).for_each(|i| *to.offset(i as isize) = T::ZERO);
                        let row = (z * height.input + y) * width.input;
                        let from = x.offset((row + low * width.stride + first) as isize);
                        let (to, n) = (to.offset(low as isize), (high - low) as usize);
                        if width.stride == 1 {
                            for i in 0..n {
                                *to.add(i) = *from.add(i);
                            }
                        } else {
                            for i in 0..n {
                                *to.add(i) = *from.add(i * width.stride as usize);
                            }
                        }
                    }
                }
                // SAFETY: the next plane begins within the channel, or right behind it.
                dst = unsafe { dst.offset(p.plane(rows) as isize) };
            }
        }
    }
}
