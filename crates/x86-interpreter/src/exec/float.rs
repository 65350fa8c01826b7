//! Arithmetic of floating point.

use super::Action;
use crate::cpu::Cpu;
use crate::number::{Float, flushed};
use crate::step::Step;
use iced_x86::Mnemonic::{self, *};

pub(super) fn action(step: &Step) -> Option<Action> {
    arithmetic(step.mnemonic)
        .or_else(|| fused(step.mnemonic))
        .or_else(|| dot(step.mnemonic))
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

/// Fused multiply-add. The digits in the name say which operands are multiplied, and which is added.
fn fused(mnemonic: Mnemonic) -> Option<Action> {
    macro_rules! table {
        ($($all:ident $first:ident $t:ident |$($x:ident),*| $e:expr;)*) => {
            Some(match mnemonic {
                $(
                    $all => |c: &mut Cpu, s: &Step| c.zip3(s, |$($x: $t),*| $e),
                    $first => |c: &mut Cpu, s: &Step| c.first3(s, |$($x: $t),*| $e),
                )*
                _ => return None,
            })
        };
    }
    table! {
        Vfmadd132ps Vfmadd132ss f32 |a, b, c| sum(a, c, b);
        Vfmadd132pd Vfmadd132sd f64 |a, b, c| sum(a, c, b);
        Vfmadd213ps Vfmadd213ss f32 |a, b, c| sum(b, a, c);
        Vfmadd213pd Vfmadd213sd f64 |a, b, c| sum(b, a, c);
        Vfmadd231ps Vfmadd231ss f32 |a, b, c| sum(b, c, a);
        Vfmadd231pd Vfmadd231sd f64 |a, b, c| sum(b, c, a);
        Vfmsub132ps Vfmsub132ss f32 |a, b, c| difference(a, c, b);
        Vfmsub132pd Vfmsub132sd f64 |a, b, c| difference(a, c, b);
        Vfmsub213ps Vfmsub213ss f32 |a, b, c| difference(b, a, c);
        Vfmsub213pd Vfmsub213sd f64 |a, b, c| difference(b, a, c);
        Vfmsub231ps Vfmsub231ss f32 |a, b, c| difference(b, c, a);
        Vfmsub231pd Vfmsub231sd f64 |a, b, c| difference(b, c, a);
        Vfnmadd132ps Vfnmadd132ss f32 |a, b, c| negated_sum(a, c, b);
        Vfnmadd132pd Vfnmadd132sd f64 |a, b, c| negated_sum(a, c, b);
        Vfnmadd213ps Vfnmadd213ss f32 |a, b, c| negated_sum(b, a, c);
        Vfnmadd213pd Vfnmadd213sd f64 |a, b, c| negated_sum(b, a, c);
        Vfnmadd231ps Vfnmadd231ss f32 |a, b, c| negated_sum(b, c, a);
        Vfnmadd231pd Vfnmadd231sd f64 |a, b, c| negated_sum(b, c, a);
        Vfnmsub132ps Vfnmsub132ss f32 |a, b, c| negated_difference(a, c, b);
        Vfnmsub132pd Vfnmsub132sd f64 |a, b, c| negated_difference(a, c, b);
        Vfnmsub213ps Vfnmsub213ss f32 |a, b, c| negated_difference(b, a, c);
        Vfnmsub213pd Vfnmsub213sd f64 |a, b, c| negated_difference(b, a, c);
        Vfnmsub231ps Vfnmsub231ss f32 |a, b, c| negated_difference(b, c, a);
        Vfnmsub231pd Vfnmsub231sd f64 |a, b, c| negated_difference(b, c, a);
    }
}

/// `sum += a · b` of two pairs of bf16; the second pair is added first. Subnormals are zero.
fn dot(mnemonic: Mnemonic) -> Option<Action> {
    let dot: Action = |c, s| {
        c.zip3(s, |sum: u32, a: u32, b: u32| {
            let add = |sum: u32, terms: [u32; 2]| {
                let [a, b, sum] = [terms[0], terms[1], sum].map(|t| flushed(f32::from_bits(t)));
                flushed(a.fused(b, sum)).to_bits()
            };
            let second = add(sum, [a, b].map(|x| x & 0xffff_0000));
            add(second, [a, b].map(|x| x << 16))
        })
    };
    (mnemonic == Vdpbf16ps).then_some(dot)
}

// NaNs keep their sign.

fn sum<T: Float>(x: T, y: T, z: T) -> T {
    x.fused(y, z)
}

fn difference<T: Float>(x: T, y: T, z: T) -> T {
    x.fused(y, if z.is_nan() { z } else { z.negative() })
}

/// `-(x · y) + z`.
fn negated_sum<T: Float>(x: T, y: T, z: T) -> T {
    (if x.is_nan() { x } else { x.negative() }).fused(y, z)
}

/// `-(x · y) - z`.
fn negated_difference<T: Float>(x: T, y: T, z: T) -> T {
    difference(if x.is_nan() { x } else { x.negative() }, y, z)
}

fn parts(mnemonic: Mnemonic) -> Option<Action> {
    Some(match mnemonic {
        Vroundps => |c, s| c.map(s, |x: f32| x.rounded(s.immediate() & 15)),
        Vroundpd => |c, s| c.map(s, |x: f64| x.rounded(s.immediate() & 15)),
        Vrndscaleps => |c, s| c.map(s, |x: f32| x.rounded(s.immediate())),
        Vrndscalepd => |c, s| c.map(s, |x: f64| x.rounded(s.immediate())),
        Vscalefps => |c, s| c.zip(s, f32::scaled),
        Vscalefpd => |c, s| c.zip(s, f64::scaled),
        Vgetexpps => |c, s| c.map(s, f32::exponent),
        Vgetexppd => |c, s| c.map(s, f64::exponent),
        Vgetmantps => |c, s| c.map(s, |x: f32| x.mantissa(s.immediate())),
        Vgetmantpd => |c, s| c.map(s, |x: f64| x.mantissa(s.immediate())),
        _ => return None,
    })
}

/// Arithmetic of the lowest lane only.
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
