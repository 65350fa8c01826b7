//! Arithmetic of floating point.

use super::Action;
use crate::cpu::Cpu;
use crate::number::Float;
use crate::step::Step;
use iced_x86::Mnemonic::{self, *};

pub(super) fn find(step: &Step) -> Option<Action> {
    arithmetic(step.mnemonic)
        .or_else(|| fused(step.mnemonic))
        .or_else(|| parts(step.mnemonic))
        .or_else(|| first(step.mnemonic))
}

fn arithmetic(mnemonic: Mnemonic) -> Option<Action> {
    Some(match mnemonic {
        Vaddps => |c, s| c.zip(s, f32::plus),
        Vaddpd => |c, s| c.zip(s, f64::plus),
        Vsubps => |c, s| c.zip(s, f32::minus),
        Vsubpd => |c, s| c.zip(s, f64::minus),
        Vmulps => |c, s| c.zip(s, f32::times),
        Vmulpd => |c, s| c.zip(s, f64::times),
        Vdivps => |c, s| c.zip(s, f32::over),
        Vdivpd => |c, s| c.zip(s, f64::over),
        Vminps => |c, s| c.zip(s, f32::least),
        Vminpd => |c, s| c.zip(s, f64::least),
        Vmaxps => |c, s| c.zip(s, f32::greatest),
        Vmaxpd => |c, s| c.zip(s, f64::greatest),
        Vsqrtps => |c, s| c.map(s, f32::root),
        Vsqrtpd => |c, s| c.map(s, f64::root),
        _ => return None,
    })
}

/// The numbers in the name say which operands are multiplied, and which is added.
fn fused(mnemonic: Mnemonic) -> Option<Action> {
    macro_rules! table {
        ($($mnemonic:ident $t:ident |$($x:ident),*| $e:expr;)*) => {
            Some(match mnemonic {
                $($mnemonic => |c: &mut Cpu, s: &Step| c.zip3(s, |$($x: $t),*| $e),)*
                _ => return None,
            })
        };
    }
    table! {
        Vfmadd132ps f32 |a, b, c| a.fused(c, b);
        Vfmadd213ps f32 |a, b, c| b.fused(a, c);
        Vfmadd231ps f32 |a, b, c| b.fused(c, a);
        Vfmadd132pd f64 |a, b, c| a.fused(c, b);
        Vfmadd213pd f64 |a, b, c| b.fused(a, c);
        Vfmadd231pd f64 |a, b, c| b.fused(c, a);
        Vfmsub132ps f32 |a, b, c| subtracted(a, c, b);
        Vfmsub213ps f32 |a, b, c| subtracted(b, a, c);
        Vfmsub231ps f32 |a, b, c| subtracted(b, c, a);
        Vfmsub132pd f64 |a, b, c| subtracted(a, c, b);
        Vfmsub213pd f64 |a, b, c| subtracted(b, a, c);
        Vfmsub231pd f64 |a, b, c| subtracted(b, c, a);
        Vfnmadd132ps f32 |a, b, c| negated(a, c, b);
        Vfnmadd213ps f32 |a, b, c| negated(b, a, c);
        Vfnmadd231ps f32 |a, b, c| negated(b, c, a);
        Vfnmadd132pd f64 |a, b, c| negated(a, c, b);
        Vfnmadd213pd f64 |a, b, c| negated(b, a, c);
        Vfnmadd231pd f64 |a, b, c| negated(b, c, a);
    }
}

/// `x · y - z`, with NaNs as they are.
fn subtracted<T: Float>(x: T, y: T, z: T) -> T {
    x.fused(y, if z.is_nan() { z } else { z.negative() })
}

/// `-(x · y) + z`, with NaNs as they are.
fn negated<T: Float>(x: T, y: T, z: T) -> T {
    (if x.is_nan() { x } else { x.negative() }).fused(y, z)
}

fn parts(mnemonic: Mnemonic) -> Option<Action> {
    Some(match mnemonic {
        Vroundps | Vrndscaleps => |c, s| c.map(s, |x: f32| x.rounded(s.immediate())),
        Vroundpd | Vrndscalepd => |c, s| c.map(s, |x: f64| x.rounded(s.immediate())),
        Vscalefps => |c, s| c.zip(s, f32::scaled),
        Vscalefpd => |c, s| c.zip(s, f64::scaled),
        Vgetexpps => |c, s| c.map(s, f32::exponent),
        Vgetexppd => |c, s| c.map(s, f64::exponent),
        Vgetmantps => |c, s| c.map(s, |x: f32| x.mantissa(s.immediate())),
        Vgetmantpd => |c, s| c.map(s, |x: f64| x.mantissa(s.immediate())),
        _ => return None,
    })
}

/// Of the lowest lane only.
fn first(mnemonic: Mnemonic) -> Option<Action> {
    Some(match mnemonic {
        Vaddss => |c, s| c.first(s, f32::plus),
        Vaddsd => |c, s| c.first(s, f64::plus),
        Vsubss => |c, s| c.first(s, f32::minus),
        Vsubsd => |c, s| c.first(s, f64::minus),
        Vmulss => |c, s| c.first(s, f32::times),
        Vmulsd => |c, s| c.first(s, f64::times),
        Vdivss => |c, s| c.first(s, f32::over),
        Vdivsd => |c, s| c.first(s, f64::over),
        Vminss => |c, s| c.first(s, f32::least),
        Vminsd => |c, s| c.first(s, f64::least),
        Vmaxss => |c, s| c.first(s, f32::greatest),
        Vmaxsd => |c, s| c.first(s, f64::greatest),
        Vsqrtss => |c, s| c.first(s, |_, x: f32| x.root()),
        Vsqrtsd => |c, s| c.first(s, |_, x: f64| x.root()),
        _ => return None,
    })
}
