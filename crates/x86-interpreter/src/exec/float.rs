//! Arithmetic of floating point.

use crate::cpu::Action;
use crate::number::{Float, flushed};
use crate::step::Step;
use iced_x86::Mnemonic::*;

pub(super) fn action(step: &Step) -> Option<Action> {
    arithmetic(step).or_else(|| fused(step))
}

fn arithmetic(step: &Step) -> Option<Action> {
    actions! { step;
        Vaddps: f32, Vaddpd: f64 => |c, s| c.zip(s, T::plus);
        Vaddss: f32, Vaddsd: f64 => |c, s| c.first(s, T::plus);
        Vsubps: f32, Vsubpd: f64 => |c, s| c.zip(s, T::minus);
        Vsubss: f32, Vsubsd: f64 => |c, s| c.first(s, T::minus);
        Vmulps: f32, Vmulpd: f64 => |c, s| c.zip(s, T::times);
        Vmulss: f32, Vmulsd: f64 => |c, s| c.first(s, T::times);
        Vdivps: f32, Vdivpd: f64 => |c, s| c.zip(s, T::over);
        Vdivss: f32, Vdivsd: f64 => |c, s| c.first(s, T::over);
        Vminps: f32, Vminpd: f64 => |c, s| c.zip(s, T::least);
        Vminss: f32, Vminsd: f64 => |c, s| c.first(s, T::least);
        Vmaxps: f32, Vmaxpd: f64 => |c, s| c.zip(s, T::greatest);
        Vmaxss: f32, Vmaxsd: f64 => |c, s| c.first(s, T::greatest);
        Vsqrtps: f32, Vsqrtpd: f64 => |c, s| c.map(s, T::root);
        Vsqrtss: f32, Vsqrtsd: f64 => |c, s| c.first(s, |_, x: T| x.root());
        Vroundps: f32, Vroundpd: f64 => |c, s| c.map(s, |x: T| x.rounded(s.immediate() & 15));
        Vrndscaleps: f32, Vrndscalepd: f64 => |c, s| c.map(s, |x: T| x.rounded(s.immediate()));
        Vscalefps: f32, Vscalefpd: f64 => |c, s| c.zip(s, T::scaled);
        Vgetexpps: f32, Vgetexppd: f64 => |c, s| c.map(s, T::exponent);
        Vgetmantps: f32, Vgetmantpd: f64 => |c, s| c.map(s, |x: T| x.mantissa(s.immediate()));
        Vdpbf16ps => |c, s| c.zip3(s, add_pairs);
    }
}

/// Fused multiply-add. The digits in the name say which operands are multiplied, and which is added.
fn fused(step: &Step) -> Option<Action> {
    actions! { step;
        Vfmadd132ps: f32, Vfmadd132pd: f64 => |c, s| c.zip3(s, |a: T, b, c| sum(a, c, b));
        Vfmadd132ss: f32, Vfmadd132sd: f64 => |c, s| c.first3(s, |a: T, b, c| sum(a, c, b));
        Vfmadd213ps: f32, Vfmadd213pd: f64 => |c, s| c.zip3(s, |a: T, b, c| sum(b, a, c));
        Vfmadd213ss: f32, Vfmadd213sd: f64 => |c, s| c.first3(s, |a: T, b, c| sum(b, a, c));
        Vfmadd231ps: f32, Vfmadd231pd: f64 => |c, s| c.zip3(s, |a: T, b, c| sum(b, c, a));
        Vfmadd231ss: f32, Vfmadd231sd: f64 => |c, s| c.first3(s, |a: T, b, c| sum(b, c, a));
        Vfmsub132ps: f32, Vfmsub132pd: f64 => |c, s| c.zip3(s, |a: T, b, c| difference(a, c, b));
        Vfmsub132ss: f32, Vfmsub132sd: f64 => |c, s| c.first3(s, |a: T, b, c| difference(a, c, b));
        Vfmsub213ps: f32, Vfmsub213pd: f64 => |c, s| c.zip3(s, |a: T, b, c| difference(b, a, c));
        Vfmsub213ss: f32, Vfmsub213sd: f64 => |c, s| c.first3(s, |a: T, b, c| difference(b, a, c));
        Vfmsub231ps: f32, Vfmsub231pd: f64 => |c, s| c.zip3(s, |a: T, b, c| difference(b, c, a));
        Vfmsub231ss: f32, Vfmsub231sd: f64 => |c, s| c.first3(s, |a: T, b, c| difference(b, c, a));
        Vfnmadd132ps: f32, Vfnmadd132pd: f64 => |c, s| c.zip3(s, |a: T, b, c| negated_sum(a, c, b));
        Vfnmadd132ss: f32, Vfnmadd132sd: f64 => |c, s| c.first3(s, |a: T, b, c| negated_sum(a, c, b));
        Vfnmadd213ps: f32, Vfnmadd213pd: f64 => |c, s| c.zip3(s, |a: T, b, c| negated_sum(b, a, c));
        Vfnmadd213ss: f32, Vfnmadd213sd: f64 => |c, s| c.first3(s, |a: T, b, c| negated_sum(b, a, c));
        Vfnmadd231ps: f32, Vfnmadd231pd: f64 => |c, s| c.zip3(s, |a: T, b, c| negated_sum(b, c, a));
        Vfnmadd231ss: f32, Vfnmadd231sd: f64 => |c, s| c.first3(s, |a: T, b, c| negated_sum(b, c, a));
        Vfnmsub132ps: f32, Vfnmsub132pd: f64 => |c, s| c.zip3(s, |a: T, b, c| negated_difference(a, c, b));
        Vfnmsub132ss: f32, Vfnmsub132sd: f64 => |c, s| c.first3(s, |a: T, b, c| negated_difference(a, c, b));
        Vfnmsub213ps: f32, Vfnmsub213pd: f64 => |c, s| c.zip3(s, |a: T, b, c| negated_difference(b, a, c));
        Vfnmsub213ss: f32, Vfnmsub213sd: f64 => |c, s| c.first3(s, |a: T, b, c| negated_difference(b, a, c));
        Vfnmsub231ps: f32, Vfnmsub231pd: f64 => |c, s| c.zip3(s, |a: T, b, c| negated_difference(b, c, a));
        Vfnmsub231ss: f32, Vfnmsub231sd: f64 => |c, s| c.first3(s, |a: T, b, c| negated_difference(b, c, a));
    }
}

/// `sum += a · b` of two pairs of bf16; the second pair is added first. Subnormals are zero.
fn add_pairs(sum: u32, a: u32, b: u32) -> u32 {
    let add = |sum: u32, terms: [u32; 2]| {
        let [a, b, sum] = [terms[0], terms[1], sum].map(|t| flushed(f32::from_bits(t)));
        flushed(a.fused(b, sum)).to_bits()
    };
    let second = add(sum, [a, b].map(|x| x & 0xffff_0000));
    add(second, [a, b].map(|x| x << 16))
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
