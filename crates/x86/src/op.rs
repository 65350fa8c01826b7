//! Vector instructions by mnemonic, with their encodings.
//!
//! If the mnemonics of VEX and EVEX differ, names follow VEX (`VPAND` is `VPANDD` with EVEX, `VROUNDPS` is
//! `VRNDSCALEPS`). `_STORE` moves from a register to memory, `_GPR` takes a general register.

#![allow(missing_docs)] // mnemonics say what they are

use crate::operand::Width;
use iced_x86::Code;

/// A vector instruction: its encodings with VEX for vectors of 128 and 256 bits, with EVEX for 128, 256 and 512.
/// The width is that of the widest operand.
#[derive(Copy, Clone, Debug)]
pub struct Op {
    /// The mnemonic.
    pub name: &'static str,
    pub(crate) forms: [Form; 5],
}

/// An encoding, and the kinds of its operands.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Form {
    pub code: Code,
    pub name: &'static str,
    pub operands: [Kind; 4],
}

impl Op {
    /// Returns the name in `iced_x86` of the EVEX or VEX encoding for vectors of a width, or `None` if there is no such
    /// encoding.
    pub fn encoding(&self, evex: bool, width: Width) -> Option<&'static str> {
        let form = self.form(evex, width);
        (form.code != Code::INVALID).then_some(form.name)
    }

    pub(crate) fn form(&self, evex: bool, width: Width) -> Form {
        match (evex, width) {
            (true, _) => self.forms[2 + width as usize],
            (false, Width::Z) => Form::NONE,
            (false, _) => self.forms[width as usize],
        }
    }
}

/// The kind of an instruction's operand, if it is a register.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    Xmm,
    Ymm,
    Zmm,
    Mask,
    Gpr32,
    Gpr64,
    Memory,
    Immediate,
}

impl Form {
    /// Derives the operands from the name of the encoding in `iced_x86`, such as
    /// `EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er`.
    const fn new(code: Code, name: &'static str) -> Form {
        let text = name.as_bytes();
        let mut operands = [Kind::None; 4];
        let (mut end, mut field, mut count) = (0, 0, 0);
        while end < text.len() {
            let start = end;
            while end < text.len() && text[end] != b'_' {
                end += 1;
            }
            let second = if start + 1 < end { text[start + 1] } else { 0 };
            let third = if start + 2 < end { text[start + 2] } else { 0 };
            let kind = match (text[start], second) {
                (b'x', _) => Kind::Xmm,
                (b'y', _) => Kind::Ymm,
                (b'z', _) => Kind::Zmm,
                (b'k', b'r') => Kind::Mask,
                (b'r', b'3') => Kind::Gpr32,
                (b'r', b'6') => Kind::Gpr64,
                (b'r', b'm') if third == b'3' => Kind::Gpr32,
                (b'r', b'm') => Kind::Gpr64,
                (b'm' | b'v', _) => Kind::Memory,
                (b'i', _) => Kind::Immediate,
                _ => Kind::None, // a mask on the result, or the rounding
            };
            let is_operand = !matches!(kind, Kind::None);
            if field >= 2 && is_operand {
                operands[count] = kind;
                count += 1;
            }
            field += 1;
            end += 1;
        }
        Form {
            code,
            name,
            operands,
        }
    }

    const NONE: Form = Form {
        code: Code::INVALID,
        name: "",
        operands: [Kind::None; 4],
    };
}

macro_rules! form {
    (-) => {
        Form::NONE
    };
    ($code:ident) => {
        Form::new(Code::$code, stringify!($code))
    };
}

macro_rules! ops {
    ($($name:ident: $a:tt $b:tt $c:tt $d:tt $e:tt;)*) => {
        $(pub const $name: Op = Op {
            name: stringify!($name),
            forms: [form!($a), form!($b), form!($c), form!($d), form!($e)],
        };)*

        /// Every instruction.
        pub const ALL: &[Op] = &[$($name),*];
    };
}

ops! {
    VADDPS: VEX_Vaddps_xmm_xmm_xmmm128 VEX_Vaddps_ymm_ymm_ymmm256 EVEX_Vaddps_xmm_k1z_xmm_xmmm128b32 EVEX_Vaddps_ymm_k1z_ymm_ymmm256b32 EVEX_Vaddps_zmm_k1z_zmm_zmmm512b32_er;
    VSUBPS: VEX_Vsubps_xmm_xmm_xmmm128 VEX_Vsubps_ymm_ymm_ymmm256 EVEX_Vsubps_xmm_k1z_xmm_xmmm128b32 EVEX_Vsubps_ymm_k1z_ymm_ymmm256b32 EVEX_Vsubps_zmm_k1z_zmm_zmmm512b32_er;
    VMULPS: VEX_Vmulps_xmm_xmm_xmmm128 VEX_Vmulps_ymm_ymm_ymmm256 EVEX_Vmulps_xmm_k1z_xmm_xmmm128b32 EVEX_Vmulps_ymm_k1z_ymm_ymmm256b32 EVEX_Vmulps_zmm_k1z_zmm_zmmm512b32_er;
    VDIVPS: VEX_Vdivps_xmm_xmm_xmmm128 VEX_Vdivps_ymm_ymm_ymmm256 EVEX_Vdivps_xmm_k1z_xmm_xmmm128b32 EVEX_Vdivps_ymm_k1z_ymm_ymmm256b32 EVEX_Vdivps_zmm_k1z_zmm_zmmm512b32_er;
    VMINPS: VEX_Vminps_xmm_xmm_xmmm128 VEX_Vminps_ymm_ymm_ymmm256 EVEX_Vminps_xmm_k1z_xmm_xmmm128b32 EVEX_Vminps_ymm_k1z_ymm_ymmm256b32 EVEX_Vminps_zmm_k1z_zmm_zmmm512b32_sae;
    VMAXPS: VEX_Vmaxps_xmm_xmm_xmmm128 VEX_Vmaxps_ymm_ymm_ymmm256 EVEX_Vmaxps_xmm_k1z_xmm_xmmm128b32 EVEX_Vmaxps_ymm_k1z_ymm_ymmm256b32 EVEX_Vmaxps_zmm_k1z_zmm_zmmm512b32_sae;
    VADDPD: VEX_Vaddpd_xmm_xmm_xmmm128 VEX_Vaddpd_ymm_ymm_ymmm256 EVEX_Vaddpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vaddpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vaddpd_zmm_k1z_zmm_zmmm512b64_er;
    VSUBPD: VEX_Vsubpd_xmm_xmm_xmmm128 VEX_Vsubpd_ymm_ymm_ymmm256 EVEX_Vsubpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vsubpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vsubpd_zmm_k1z_zmm_zmmm512b64_er;
    VMULPD: VEX_Vmulpd_xmm_xmm_xmmm128 VEX_Vmulpd_ymm_ymm_ymmm256 EVEX_Vmulpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vmulpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vmulpd_zmm_k1z_zmm_zmmm512b64_er;
    VDIVPD: VEX_Vdivpd_xmm_xmm_xmmm128 VEX_Vdivpd_ymm_ymm_ymmm256 EVEX_Vdivpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vdivpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vdivpd_zmm_k1z_zmm_zmmm512b64_er;
    VMINPD: VEX_Vminpd_xmm_xmm_xmmm128 VEX_Vminpd_ymm_ymm_ymmm256 EVEX_Vminpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vminpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vminpd_zmm_k1z_zmm_zmmm512b64_sae;
    VMAXPD: VEX_Vmaxpd_xmm_xmm_xmmm128 VEX_Vmaxpd_ymm_ymm_ymmm256 EVEX_Vmaxpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vmaxpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vmaxpd_zmm_k1z_zmm_zmmm512b64_sae;
    VFMADD231PS: VEX_Vfmadd231ps_xmm_xmm_xmmm128 VEX_Vfmadd231ps_ymm_ymm_ymmm256 EVEX_Vfmadd231ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd231ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd231ps_zmm_k1z_zmm_zmmm512b32_er;
    VDPBF16PS: - - EVEX_Vdpbf16ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vdpbf16ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vdpbf16ps_zmm_k1z_zmm_zmmm512b32;
    VFMADD213PS: VEX_Vfmadd213ps_xmm_xmm_xmmm128 VEX_Vfmadd213ps_ymm_ymm_ymmm256 EVEX_Vfmadd213ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfmadd213ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfmadd213ps_zmm_k1z_zmm_zmmm512b32_er;
    VFNMADD231PS: VEX_Vfnmadd231ps_xmm_xmm_xmmm128 VEX_Vfnmadd231ps_ymm_ymm_ymmm256 EVEX_Vfnmadd231ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfnmadd231ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfnmadd231ps_zmm_k1z_zmm_zmmm512b32_er;
    VFNMADD213PS: VEX_Vfnmadd213ps_xmm_xmm_xmmm128 VEX_Vfnmadd213ps_ymm_ymm_ymmm256 EVEX_Vfnmadd213ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vfnmadd213ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vfnmadd213ps_zmm_k1z_zmm_zmmm512b32_er;
    VFMADD231PD: VEX_Vfmadd231pd_xmm_xmm_xmmm128 VEX_Vfmadd231pd_ymm_ymm_ymmm256 EVEX_Vfmadd231pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmadd231pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmadd231pd_zmm_k1z_zmm_zmmm512b64_er;
    VFMADD213PD: VEX_Vfmadd213pd_xmm_xmm_xmmm128 VEX_Vfmadd213pd_ymm_ymm_ymmm256 EVEX_Vfmadd213pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfmadd213pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfmadd213pd_zmm_k1z_zmm_zmmm512b64_er;
    VFNMADD231PD: VEX_Vfnmadd231pd_xmm_xmm_xmmm128 VEX_Vfnmadd231pd_ymm_ymm_ymmm256 EVEX_Vfnmadd231pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfnmadd231pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfnmadd231pd_zmm_k1z_zmm_zmmm512b64_er;
    VFNMADD213PD: VEX_Vfnmadd213pd_xmm_xmm_xmmm128 VEX_Vfnmadd213pd_ymm_ymm_ymmm256 EVEX_Vfnmadd213pd_xmm_k1z_xmm_xmmm128b64 EVEX_Vfnmadd213pd_ymm_k1z_ymm_ymmm256b64 EVEX_Vfnmadd213pd_zmm_k1z_zmm_zmmm512b64_er;
    VANDPS: VEX_Vandps_xmm_xmm_xmmm128 VEX_Vandps_ymm_ymm_ymmm256 EVEX_Vandps_xmm_k1z_xmm_xmmm128b32 EVEX_Vandps_ymm_k1z_ymm_ymmm256b32 EVEX_Vandps_zmm_k1z_zmm_zmmm512b32;
    VORPS: VEX_Vorps_xmm_xmm_xmmm128 VEX_Vorps_ymm_ymm_ymmm256 EVEX_Vorps_xmm_k1z_xmm_xmmm128b32 EVEX_Vorps_ymm_k1z_ymm_ymmm256b32 EVEX_Vorps_zmm_k1z_zmm_zmmm512b32;
    VXORPS: VEX_Vxorps_xmm_xmm_xmmm128 VEX_Vxorps_ymm_ymm_ymmm256 EVEX_Vxorps_xmm_k1z_xmm_xmmm128b32 EVEX_Vxorps_ymm_k1z_ymm_ymmm256b32 EVEX_Vxorps_zmm_k1z_zmm_zmmm512b32;
    VANDPD: VEX_Vandpd_xmm_xmm_xmmm128 VEX_Vandpd_ymm_ymm_ymmm256 EVEX_Vandpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vandpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vandpd_zmm_k1z_zmm_zmmm512b64;
    VXORPD: VEX_Vxorpd_xmm_xmm_xmmm128 VEX_Vxorpd_ymm_ymm_ymmm256 EVEX_Vxorpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vxorpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vxorpd_zmm_k1z_zmm_zmmm512b64;
    VPADDD: VEX_Vpaddd_xmm_xmm_xmmm128 VEX_Vpaddd_ymm_ymm_ymmm256 EVEX_Vpaddd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpaddd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpaddd_zmm_k1z_zmm_zmmm512b32;
    VPADDQ: VEX_Vpaddq_xmm_xmm_xmmm128 VEX_Vpaddq_ymm_ymm_ymmm256 EVEX_Vpaddq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpaddq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpaddq_zmm_k1z_zmm_zmmm512b64;
    VPSUBD: VEX_Vpsubd_xmm_xmm_xmmm128 VEX_Vpsubd_ymm_ymm_ymmm256 EVEX_Vpsubd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsubd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsubd_zmm_k1z_zmm_zmmm512b32;
    VPSUBQ: VEX_Vpsubq_xmm_xmm_xmmm128 VEX_Vpsubq_ymm_ymm_ymmm256 EVEX_Vpsubq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsubq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsubq_zmm_k1z_zmm_zmmm512b64;
    VPMULLD: VEX_Vpmulld_xmm_xmm_xmmm128 VEX_Vpmulld_ymm_ymm_ymmm256 EVEX_Vpmulld_xmm_k1z_xmm_xmmm128b32 EVEX_Vpmulld_ymm_k1z_ymm_ymmm256b32 EVEX_Vpmulld_zmm_k1z_zmm_zmmm512b32;
    VPMADDWD: VEX_Vpmaddwd_xmm_xmm_xmmm128 VEX_Vpmaddwd_ymm_ymm_ymmm256 EVEX_Vpmaddwd_xmm_k1z_xmm_xmmm128 EVEX_Vpmaddwd_ymm_k1z_ymm_ymmm256 EVEX_Vpmaddwd_zmm_k1z_zmm_zmmm512;
    VPMADDUBSW: VEX_Vpmaddubsw_xmm_xmm_xmmm128 VEX_Vpmaddubsw_ymm_ymm_ymmm256 EVEX_Vpmaddubsw_xmm_k1z_xmm_xmmm128 EVEX_Vpmaddubsw_ymm_k1z_ymm_ymmm256 EVEX_Vpmaddubsw_zmm_k1z_zmm_zmmm512;
    VPDPWSSD: VEX_Vpdpwssd_xmm_xmm_xmmm128 VEX_Vpdpwssd_ymm_ymm_ymmm256 EVEX_Vpdpwssd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpdpwssd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpdpwssd_zmm_k1z_zmm_zmmm512b32;
    VPDPBUSD: VEX_Vpdpbusd_xmm_xmm_xmmm128 VEX_Vpdpbusd_ymm_ymm_ymmm256 EVEX_Vpdpbusd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpdpbusd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpdpbusd_zmm_k1z_zmm_zmmm512b32;
    VPMULLQ: - - EVEX_Vpmullq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmullq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmullq_zmm_k1z_zmm_zmmm512b64;
    VPMULUDQ: VEX_Vpmuludq_xmm_xmm_xmmm128 VEX_Vpmuludq_ymm_ymm_ymmm256 EVEX_Vpmuludq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmuludq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmuludq_zmm_k1z_zmm_zmmm512b64;
    VPMAXSD: VEX_Vpmaxsd_xmm_xmm_xmmm128 VEX_Vpmaxsd_ymm_ymm_ymmm256 EVEX_Vpmaxsd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpmaxsd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpmaxsd_zmm_k1z_zmm_zmmm512b32;
    VPMINSD: VEX_Vpminsd_xmm_xmm_xmmm128 VEX_Vpminsd_ymm_ymm_ymmm256 EVEX_Vpminsd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpminsd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpminsd_zmm_k1z_zmm_zmmm512b32;
    VPMAXSQ: - - EVEX_Vpmaxsq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpmaxsq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpmaxsq_zmm_k1z_zmm_zmmm512b64;
    VPMINSQ: - - EVEX_Vpminsq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpminsq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpminsq_zmm_k1z_zmm_zmmm512b64;
    VPSLLVD: VEX_Vpsllvd_xmm_xmm_xmmm128 VEX_Vpsllvd_ymm_ymm_ymmm256 EVEX_Vpsllvd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsllvd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsllvd_zmm_k1z_zmm_zmmm512b32;
    VPSRAVD: VEX_Vpsravd_xmm_xmm_xmmm128 VEX_Vpsravd_ymm_ymm_ymmm256 EVEX_Vpsravd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpsravd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpsravd_zmm_k1z_zmm_zmmm512b32;
    VPSLLVQ: VEX_Vpsllvq_xmm_xmm_xmmm128 VEX_Vpsllvq_ymm_ymm_ymmm256 EVEX_Vpsllvq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsllvq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsllvq_zmm_k1z_zmm_zmmm512b64;
    VPSRAVQ: - - EVEX_Vpsravq_xmm_k1z_xmm_xmmm128b64 EVEX_Vpsravq_ymm_k1z_ymm_ymmm256b64 EVEX_Vpsravq_zmm_k1z_zmm_zmmm512b64;
    VPERMPS: - VEX_Vpermps_ymm_ymm_ymmm256 - EVEX_Vpermps_ymm_k1z_ymm_ymmm256b32 EVEX_Vpermps_zmm_k1z_zmm_zmmm512b32;
    VPACKUSDW: VEX_Vpackusdw_xmm_xmm_xmmm128 VEX_Vpackusdw_ymm_ymm_ymmm256 EVEX_Vpackusdw_xmm_k1z_xmm_xmmm128b32 EVEX_Vpackusdw_ymm_k1z_ymm_ymmm256b32 EVEX_Vpackusdw_zmm_k1z_zmm_zmmm512b32;
    VPACKUSWB: VEX_Vpackuswb_xmm_xmm_xmmm128 VEX_Vpackuswb_ymm_ymm_ymmm256 EVEX_Vpackuswb_xmm_k1z_xmm_xmmm128 EVEX_Vpackuswb_ymm_k1z_ymm_ymmm256 EVEX_Vpackuswb_zmm_k1z_zmm_zmmm512;
    VPCMPEQD: VEX_Vpcmpeqd_xmm_xmm_xmmm128 VEX_Vpcmpeqd_ymm_ymm_ymmm256 - - -;
    VPCMPEQQ: VEX_Vpcmpeqq_xmm_xmm_xmmm128 VEX_Vpcmpeqq_ymm_ymm_ymmm256 - - -;
    VPCMPGTD: VEX_Vpcmpgtd_xmm_xmm_xmmm128 VEX_Vpcmpgtd_ymm_ymm_ymmm256 - - -;
    VPCMPGTQ: VEX_Vpcmpgtq_xmm_xmm_xmmm128 VEX_Vpcmpgtq_ymm_ymm_ymmm256 - - -;
    VSCALEFPS: - - EVEX_Vscalefps_xmm_k1z_xmm_xmmm128b32 EVEX_Vscalefps_ymm_k1z_ymm_ymmm256b32 EVEX_Vscalefps_zmm_k1z_zmm_zmmm512b32_er;
    VPAND: VEX_Vpand_xmm_xmm_xmmm128 VEX_Vpand_ymm_ymm_ymmm256 EVEX_Vpandd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpandd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpandd_zmm_k1z_zmm_zmmm512b32;
    VPOR: VEX_Vpor_xmm_xmm_xmmm128 VEX_Vpor_ymm_ymm_ymmm256 EVEX_Vpord_xmm_k1z_xmm_xmmm128b32 EVEX_Vpord_ymm_k1z_ymm_ymmm256b32 EVEX_Vpord_zmm_k1z_zmm_zmmm512b32;
    VPXOR: VEX_Vpxor_xmm_xmm_xmmm128 VEX_Vpxor_ymm_ymm_ymmm256 EVEX_Vpxord_xmm_k1z_xmm_xmmm128b32 EVEX_Vpxord_ymm_k1z_ymm_ymmm256b32 EVEX_Vpxord_zmm_k1z_zmm_zmmm512b32;
    VPANDN: VEX_Vpandn_xmm_xmm_xmmm128 VEX_Vpandn_ymm_ymm_ymmm256 EVEX_Vpandnd_xmm_k1z_xmm_xmmm128b32 EVEX_Vpandnd_ymm_k1z_ymm_ymmm256b32 EVEX_Vpandnd_zmm_k1z_zmm_zmmm512b32;
    VSQRTPS: VEX_Vsqrtps_xmm_xmmm128 VEX_Vsqrtps_ymm_ymmm256 EVEX_Vsqrtps_xmm_k1z_xmmm128b32 EVEX_Vsqrtps_ymm_k1z_ymmm256b32 EVEX_Vsqrtps_zmm_k1z_zmmm512b32_er;
    VSQRTPD: VEX_Vsqrtpd_xmm_xmmm128 VEX_Vsqrtpd_ymm_ymmm256 EVEX_Vsqrtpd_xmm_k1z_xmmm128b64 EVEX_Vsqrtpd_ymm_k1z_ymmm256b64 EVEX_Vsqrtpd_zmm_k1z_zmmm512b64_er;
    VPABSD: VEX_Vpabsd_xmm_xmmm128 VEX_Vpabsd_ymm_ymmm256 EVEX_Vpabsd_xmm_k1z_xmmm128b32 EVEX_Vpabsd_ymm_k1z_ymmm256b32 EVEX_Vpabsd_zmm_k1z_zmmm512b32;
    VCVTDQ2PS: VEX_Vcvtdq2ps_xmm_xmmm128 VEX_Vcvtdq2ps_ymm_ymmm256 EVEX_Vcvtdq2ps_xmm_k1z_xmmm128b32 EVEX_Vcvtdq2ps_ymm_k1z_ymmm256b32 EVEX_Vcvtdq2ps_zmm_k1z_zmmm512b32_er;
    VCVTTPS2DQ: VEX_Vcvttps2dq_xmm_xmmm128 VEX_Vcvttps2dq_ymm_ymmm256 EVEX_Vcvttps2dq_xmm_k1z_xmmm128b32 EVEX_Vcvttps2dq_ymm_k1z_ymmm256b32 EVEX_Vcvttps2dq_zmm_k1z_zmmm512b32_sae;
    VCVTPS2DQ: VEX_Vcvtps2dq_xmm_xmmm128 VEX_Vcvtps2dq_ymm_ymmm256 EVEX_Vcvtps2dq_xmm_k1z_xmmm128b32 EVEX_Vcvtps2dq_ymm_k1z_ymmm256b32 EVEX_Vcvtps2dq_zmm_k1z_zmmm512b32_er;
    VCVTQQ2PD: - - EVEX_Vcvtqq2pd_xmm_k1z_xmmm128b64 EVEX_Vcvtqq2pd_ymm_k1z_ymmm256b64 EVEX_Vcvtqq2pd_zmm_k1z_zmmm512b64_er;
    VCVTTPD2QQ: - - EVEX_Vcvttpd2qq_xmm_k1z_xmmm128b64 EVEX_Vcvttpd2qq_ymm_k1z_ymmm256b64 EVEX_Vcvttpd2qq_zmm_k1z_zmmm512b64_sae;
    VPABSQ: - - EVEX_Vpabsq_xmm_k1z_xmmm128b64 EVEX_Vpabsq_ymm_k1z_ymmm256b64 EVEX_Vpabsq_zmm_k1z_zmmm512b64;
    VCVTDQ2PD: VEX_Vcvtdq2pd_xmm_xmmm64 VEX_Vcvtdq2pd_ymm_xmmm128 EVEX_Vcvtdq2pd_xmm_k1z_xmmm64b32 EVEX_Vcvtdq2pd_ymm_k1z_xmmm128b32 EVEX_Vcvtdq2pd_zmm_k1z_ymmm256b32_er;
    VCVTPS2PD: VEX_Vcvtps2pd_xmm_xmmm64 VEX_Vcvtps2pd_ymm_xmmm128 EVEX_Vcvtps2pd_xmm_k1z_xmmm64b32 EVEX_Vcvtps2pd_ymm_k1z_xmmm128b32 EVEX_Vcvtps2pd_zmm_k1z_ymmm256b32_sae;
    VCVTPH2PS: VEX_Vcvtph2ps_xmm_xmmm64 VEX_Vcvtph2ps_ymm_xmmm128 EVEX_Vcvtph2ps_xmm_k1z_xmmm64 EVEX_Vcvtph2ps_ymm_k1z_xmmm128 EVEX_Vcvtph2ps_zmm_k1z_ymmm256_sae;
    VPMOVZXDQ: VEX_Vpmovzxdq_xmm_xmmm64 VEX_Vpmovzxdq_ymm_xmmm128 EVEX_Vpmovzxdq_xmm_k1z_xmmm64 EVEX_Vpmovzxdq_ymm_k1z_xmmm128 EVEX_Vpmovzxdq_zmm_k1z_ymmm256;
    VPMOVSXDQ: VEX_Vpmovsxdq_xmm_xmmm64 VEX_Vpmovsxdq_ymm_xmmm128 EVEX_Vpmovsxdq_xmm_k1z_xmmm64 EVEX_Vpmovsxdq_ymm_k1z_xmmm128 EVEX_Vpmovsxdq_zmm_k1z_ymmm256;
    VPMOVZXWD: VEX_Vpmovzxwd_xmm_xmmm64 VEX_Vpmovzxwd_ymm_xmmm128 EVEX_Vpmovzxwd_xmm_k1z_xmmm64 EVEX_Vpmovzxwd_ymm_k1z_xmmm128 EVEX_Vpmovzxwd_zmm_k1z_ymmm256;
    VPMOVSXWD: VEX_Vpmovsxwd_xmm_xmmm64 VEX_Vpmovsxwd_ymm_xmmm128 EVEX_Vpmovsxwd_xmm_k1z_xmmm64 EVEX_Vpmovsxwd_ymm_k1z_xmmm128 EVEX_Vpmovsxwd_zmm_k1z_ymmm256;
    VPMOVZXBD: VEX_Vpmovzxbd_xmm_xmmm32 VEX_Vpmovzxbd_ymm_xmmm64 EVEX_Vpmovzxbd_xmm_k1z_xmmm32 EVEX_Vpmovzxbd_ymm_k1z_xmmm64 EVEX_Vpmovzxbd_zmm_k1z_xmmm128;
    VPMOVSXBD: VEX_Vpmovsxbd_xmm_xmmm32 VEX_Vpmovsxbd_ymm_xmmm64 EVEX_Vpmovsxbd_xmm_k1z_xmmm32 EVEX_Vpmovsxbd_ymm_k1z_xmmm64 EVEX_Vpmovsxbd_zmm_k1z_xmmm128;
    VCVTPD2PS: VEX_Vcvtpd2ps_xmm_xmmm128 VEX_Vcvtpd2ps_xmm_ymmm256 EVEX_Vcvtpd2ps_xmm_k1z_xmmm128b64 EVEX_Vcvtpd2ps_xmm_k1z_ymmm256b64 EVEX_Vcvtpd2ps_ymm_k1z_zmmm512b64_er;
    VCVTTPD2DQ: VEX_Vcvttpd2dq_xmm_xmmm128 VEX_Vcvttpd2dq_xmm_ymmm256 EVEX_Vcvttpd2dq_xmm_k1z_xmmm128b64 EVEX_Vcvttpd2dq_xmm_k1z_ymmm256b64 EVEX_Vcvttpd2dq_ymm_k1z_zmmm512b64_sae;
    VCVTQQ2PS: - - EVEX_Vcvtqq2ps_xmm_k1z_xmmm128b64 EVEX_Vcvtqq2ps_xmm_k1z_ymmm256b64 EVEX_Vcvtqq2ps_ymm_k1z_zmmm512b64_er;
    VPMOVDW: - - EVEX_Vpmovdw_xmmm64_k1z_xmm EVEX_Vpmovdw_xmmm128_k1z_ymm EVEX_Vpmovdw_ymmm256_k1z_zmm;
    VPMOVQD: - - EVEX_Vpmovqd_xmmm64_k1z_xmm EVEX_Vpmovqd_xmmm128_k1z_ymm EVEX_Vpmovqd_ymmm256_k1z_zmm;
    VPMOVDB: - - EVEX_Vpmovdb_xmmm32_k1z_xmm EVEX_Vpmovdb_xmmm64_k1z_ymm EVEX_Vpmovdb_xmmm128_k1z_zmm;
    VCVTPS2PH: VEX_Vcvtps2ph_xmmm64_xmm_imm8 VEX_Vcvtps2ph_xmmm128_ymm_imm8 EVEX_Vcvtps2ph_xmmm64_k1z_xmm_imm8 EVEX_Vcvtps2ph_xmmm128_k1z_ymm_imm8 EVEX_Vcvtps2ph_ymmm256_k1z_zmm_imm8_sae;
    VROUNDPS: VEX_Vroundps_xmm_xmmm128_imm8 VEX_Vroundps_ymm_ymmm256_imm8 EVEX_Vrndscaleps_xmm_k1z_xmmm128b32_imm8 EVEX_Vrndscaleps_ymm_k1z_ymmm256b32_imm8 EVEX_Vrndscaleps_zmm_k1z_zmmm512b32_imm8_sae;
    VROUNDPD: VEX_Vroundpd_xmm_xmmm128_imm8 VEX_Vroundpd_ymm_ymmm256_imm8 EVEX_Vrndscalepd_xmm_k1z_xmmm128b64_imm8 EVEX_Vrndscalepd_ymm_k1z_ymmm256b64_imm8 EVEX_Vrndscalepd_zmm_k1z_zmmm512b64_imm8_sae;
    VPERMILPS: VEX_Vpermilps_xmm_xmmm128_imm8 VEX_Vpermilps_ymm_ymmm256_imm8 EVEX_Vpermilps_xmm_k1z_xmmm128b32_imm8 EVEX_Vpermilps_ymm_k1z_ymmm256b32_imm8 EVEX_Vpermilps_zmm_k1z_zmmm512b32_imm8;
    VPSLLD: VEX_Vpslld_xmm_xmm_imm8 VEX_Vpslld_ymm_ymm_imm8 EVEX_Vpslld_xmm_k1z_xmmm128b32_imm8 EVEX_Vpslld_ymm_k1z_ymmm256b32_imm8 EVEX_Vpslld_zmm_k1z_zmmm512b32_imm8;
    VPSRLD: VEX_Vpsrld_xmm_xmm_imm8 VEX_Vpsrld_ymm_ymm_imm8 EVEX_Vpsrld_xmm_k1z_xmmm128b32_imm8 EVEX_Vpsrld_ymm_k1z_ymmm256b32_imm8 EVEX_Vpsrld_zmm_k1z_zmmm512b32_imm8;
    VPSRAD: VEX_Vpsrad_xmm_xmm_imm8 VEX_Vpsrad_ymm_ymm_imm8 EVEX_Vpsrad_xmm_k1z_xmmm128b32_imm8 EVEX_Vpsrad_ymm_k1z_ymmm256b32_imm8 EVEX_Vpsrad_zmm_k1z_zmmm512b32_imm8;
    VPSLLQ: VEX_Vpsllq_xmm_xmm_imm8 VEX_Vpsllq_ymm_ymm_imm8 EVEX_Vpsllq_xmm_k1z_xmmm128b64_imm8 EVEX_Vpsllq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpsllq_zmm_k1z_zmmm512b64_imm8;
    VPSRLQ: VEX_Vpsrlq_xmm_xmm_imm8 VEX_Vpsrlq_ymm_ymm_imm8 EVEX_Vpsrlq_xmm_k1z_xmmm128b64_imm8 EVEX_Vpsrlq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpsrlq_zmm_k1z_zmmm512b64_imm8;
    VPERMQ: - VEX_Vpermq_ymm_ymmm256_imm8 - EVEX_Vpermq_ymm_k1z_ymmm256b64_imm8 EVEX_Vpermq_zmm_k1z_zmmm512b64_imm8;
    VSHUFPS: VEX_Vshufps_xmm_xmm_xmmm128_imm8 VEX_Vshufps_ymm_ymm_ymmm256_imm8 EVEX_Vshufps_xmm_k1z_xmm_xmmm128b32_imm8 EVEX_Vshufps_ymm_k1z_ymm_ymmm256b32_imm8 EVEX_Vshufps_zmm_k1z_zmm_zmmm512b32_imm8;
    VMOVUPS: VEX_Vmovups_xmm_xmmm128 VEX_Vmovups_ymm_ymmm256 EVEX_Vmovups_xmm_k1z_xmmm128 EVEX_Vmovups_ymm_k1z_ymmm256 EVEX_Vmovups_zmm_k1z_zmmm512;
    VMOVUPS_STORE: VEX_Vmovups_xmmm128_xmm VEX_Vmovups_ymmm256_ymm EVEX_Vmovups_xmmm128_k1z_xmm EVEX_Vmovups_ymmm256_k1z_ymm EVEX_Vmovups_zmmm512_k1z_zmm;
    VMOVUPD: VEX_Vmovupd_xmm_xmmm128 VEX_Vmovupd_ymm_ymmm256 EVEX_Vmovupd_xmm_k1z_xmmm128 EVEX_Vmovupd_ymm_k1z_ymmm256 EVEX_Vmovupd_zmm_k1z_zmmm512;
    VMOVUPD_STORE: VEX_Vmovupd_xmmm128_xmm VEX_Vmovupd_ymmm256_ymm EVEX_Vmovupd_xmmm128_k1z_xmm EVEX_Vmovupd_ymmm256_k1z_ymm EVEX_Vmovupd_zmmm512_k1z_zmm;
    VMOVNTPS: VEX_Vmovntps_m128_xmm VEX_Vmovntps_m256_ymm EVEX_Vmovntps_m128_xmm EVEX_Vmovntps_m256_ymm EVEX_Vmovntps_m512_zmm;
    VMOVDQU: VEX_Vmovdqu_xmm_xmmm128 VEX_Vmovdqu_ymm_ymmm256 EVEX_Vmovdqu32_xmm_k1z_xmmm128 EVEX_Vmovdqu32_ymm_k1z_ymmm256 EVEX_Vmovdqu32_zmm_k1z_zmmm512;
    VMOVDQU_STORE: VEX_Vmovdqu_xmmm128_xmm VEX_Vmovdqu_ymmm256_ymm EVEX_Vmovdqu32_xmmm128_k1z_xmm EVEX_Vmovdqu32_ymmm256_k1z_ymm EVEX_Vmovdqu32_zmmm512_k1z_zmm;
    VMOVDQU8: - - EVEX_Vmovdqu8_xmm_k1z_xmmm128 EVEX_Vmovdqu8_ymm_k1z_ymmm256 EVEX_Vmovdqu8_zmm_k1z_zmmm512;
    VMOVDQU8_STORE: - - EVEX_Vmovdqu8_xmmm128_k1z_xmm EVEX_Vmovdqu8_ymmm256_k1z_ymm EVEX_Vmovdqu8_zmmm512_k1z_zmm;
    VBROADCASTSS: VEX_Vbroadcastss_xmm_m32 VEX_Vbroadcastss_ymm_m32 EVEX_Vbroadcastss_xmm_k1z_xmmm32 EVEX_Vbroadcastss_ymm_k1z_xmmm32 EVEX_Vbroadcastss_zmm_k1z_xmmm32;
    VBROADCASTSD: - VEX_Vbroadcastsd_ymm_m64 - EVEX_Vbroadcastsd_ymm_k1z_xmmm64 EVEX_Vbroadcastsd_zmm_k1z_xmmm64;
    VPBROADCASTD: VEX_Vpbroadcastd_xmm_xmmm32 VEX_Vpbroadcastd_ymm_xmmm32 EVEX_Vpbroadcastd_xmm_k1z_xmmm32 EVEX_Vpbroadcastd_ymm_k1z_xmmm32 EVEX_Vpbroadcastd_zmm_k1z_xmmm32;
    VPBROADCASTQ: VEX_Vpbroadcastq_xmm_xmmm64 VEX_Vpbroadcastq_ymm_xmmm64 EVEX_Vpbroadcastq_xmm_k1z_xmmm64 EVEX_Vpbroadcastq_ymm_k1z_xmmm64 EVEX_Vpbroadcastq_zmm_k1z_xmmm64;
    VPBROADCASTB: VEX_Vpbroadcastb_xmm_xmmm8 VEX_Vpbroadcastb_ymm_xmmm8 EVEX_Vpbroadcastb_xmm_k1z_xmmm8 EVEX_Vpbroadcastb_ymm_k1z_xmmm8 EVEX_Vpbroadcastb_zmm_k1z_xmmm8;
    VPBROADCASTW: VEX_Vpbroadcastw_xmm_xmmm16 VEX_Vpbroadcastw_ymm_xmmm16 EVEX_Vpbroadcastw_xmm_k1z_xmmm16 EVEX_Vpbroadcastw_ymm_k1z_xmmm16 EVEX_Vpbroadcastw_zmm_k1z_xmmm16;
    VPBROADCASTD_GPR: - - EVEX_Vpbroadcastd_xmm_k1z_r32 EVEX_Vpbroadcastd_ymm_k1z_r32 EVEX_Vpbroadcastd_zmm_k1z_r32;
    VPBROADCASTQ_GPR: - - EVEX_Vpbroadcastq_xmm_k1z_r64 EVEX_Vpbroadcastq_ymm_k1z_r64 EVEX_Vpbroadcastq_zmm_k1z_r64;
    VBLENDVPS: VEX_Vblendvps_xmm_xmm_xmmm128_xmm VEX_Vblendvps_ymm_ymm_ymmm256_ymm - - -;
    VBLENDVPD: VEX_Vblendvpd_xmm_xmm_xmmm128_xmm VEX_Vblendvpd_ymm_ymm_ymmm256_ymm - - -;
    VBLENDMPS: - - EVEX_Vblendmps_xmm_k1z_xmm_xmmm128b32 EVEX_Vblendmps_ymm_k1z_ymm_ymmm256b32 EVEX_Vblendmps_zmm_k1z_zmm_zmmm512b32;
    VBLENDMPD: - - EVEX_Vblendmpd_xmm_k1z_xmm_xmmm128b64 EVEX_Vblendmpd_ymm_k1z_ymm_ymmm256b64 EVEX_Vblendmpd_zmm_k1z_zmm_zmmm512b64;
    VMASKMOVPS: VEX_Vmaskmovps_xmm_xmm_m128 VEX_Vmaskmovps_ymm_ymm_m256 - - -;
    VMASKMOVPS_STORE: VEX_Vmaskmovps_m128_xmm_xmm VEX_Vmaskmovps_m256_ymm_ymm - - -;
    VMASKMOVPD: VEX_Vmaskmovpd_xmm_xmm_m128 VEX_Vmaskmovpd_ymm_ymm_m256 - - -;
    VMASKMOVPD_STORE: VEX_Vmaskmovpd_m128_xmm_xmm VEX_Vmaskmovpd_m256_ymm_ymm - - -;
    VCMPPS: VEX_Vcmpps_xmm_xmm_xmmm128_imm8 VEX_Vcmpps_ymm_ymm_ymmm256_imm8 EVEX_Vcmpps_kr_k1_xmm_xmmm128b32_imm8 EVEX_Vcmpps_kr_k1_ymm_ymmm256b32_imm8 EVEX_Vcmpps_kr_k1_zmm_zmmm512b32_imm8_sae;
    VCMPPD: VEX_Vcmppd_xmm_xmm_xmmm128_imm8 VEX_Vcmppd_ymm_ymm_ymmm256_imm8 EVEX_Vcmppd_kr_k1_xmm_xmmm128b64_imm8 EVEX_Vcmppd_kr_k1_ymm_ymmm256b64_imm8 EVEX_Vcmppd_kr_k1_zmm_zmmm512b64_imm8_sae;
    VPCMPD: - - EVEX_Vpcmpd_kr_k1_xmm_xmmm128b32_imm8 EVEX_Vpcmpd_kr_k1_ymm_ymmm256b32_imm8 EVEX_Vpcmpd_kr_k1_zmm_zmmm512b32_imm8;
    VPCMPQ: - - EVEX_Vpcmpq_kr_k1_xmm_xmmm128b64_imm8 EVEX_Vpcmpq_kr_k1_ymm_ymmm256b64_imm8 EVEX_Vpcmpq_kr_k1_zmm_zmmm512b64_imm8;
    VPCMPUD: - - EVEX_Vpcmpud_kr_k1_xmm_xmmm128b32_imm8 EVEX_Vpcmpud_kr_k1_ymm_ymmm256b32_imm8 EVEX_Vpcmpud_kr_k1_zmm_zmmm512b32_imm8;
    VPTESTMB: - - EVEX_Vptestmb_kr_k1_xmm_xmmm128 EVEX_Vptestmb_kr_k1_ymm_ymmm256 EVEX_Vptestmb_kr_k1_zmm_zmmm512;
    VPMOVD2M: - - EVEX_Vpmovd2m_kr_xmm EVEX_Vpmovd2m_kr_ymm EVEX_Vpmovd2m_kr_zmm;
    VPMOVQ2M: - - EVEX_Vpmovq2m_kr_xmm EVEX_Vpmovq2m_kr_ymm EVEX_Vpmovq2m_kr_zmm;
    VPGATHERDD: VEX_Vpgatherdd_xmm_vm32x_xmm VEX_Vpgatherdd_ymm_vm32y_ymm EVEX_Vpgatherdd_xmm_k1_vm32x EVEX_Vpgatherdd_ymm_k1_vm32y EVEX_Vpgatherdd_zmm_k1_vm32z;
    VPGATHERQQ: VEX_Vpgatherqq_xmm_vm64x_xmm VEX_Vpgatherqq_ymm_vm64y_ymm EVEX_Vpgatherqq_xmm_k1_vm64x EVEX_Vpgatherqq_ymm_k1_vm64y EVEX_Vpgatherqq_zmm_k1_vm64z;
    VEXTRACT128: - VEX_Vextractf128_xmmm128_ymm_imm8 - EVEX_Vextractf32x4_xmmm128_k1z_ymm_imm8 EVEX_Vextractf32x4_xmmm128_k1z_zmm_imm8;
    VINSERT128: - VEX_Vinsertf128_ymm_ymm_xmmm128_imm8 - EVEX_Vinsertf32x4_ymm_k1z_ymm_xmmm128_imm8 EVEX_Vinsertf32x4_zmm_k1z_zmm_xmmm128_imm8;
    VEXTRACT256: - - - - EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8;
    VINSERT256: - - - - EVEX_Vinsertf64x4_zmm_k1z_zmm_ymmm256_imm8;
    VMOVQ_FROM_GPR: VEX_Vmovq_xmm_rm64 - EVEX_Vmovq_xmm_rm64 - -;
    VPERMT2PS: - - EVEX_Vpermt2ps_xmm_k1z_xmm_xmmm128b32 EVEX_Vpermt2ps_ymm_k1z_ymm_ymmm256b32 EVEX_Vpermt2ps_zmm_k1z_zmm_zmmm512b32;
    VMOVAPS: VEX_Vmovaps_xmm_xmmm128 VEX_Vmovaps_ymm_ymmm256 EVEX_Vmovaps_xmm_k1z_xmmm128 EVEX_Vmovaps_ymm_k1z_ymmm256 EVEX_Vmovaps_zmm_k1z_zmmm512;
    VMOVSD_STORE: VEX_Vmovsd_m64_xmm - EVEX_Vmovsd_m64_k1_xmm - -;
    VPEXTRB: VEX_Vpextrb_r32m8_xmm_imm8 - - - -;
    VPEXTRW: VEX_Vpextrw_r32m16_xmm_imm8 - - - -;
    VPINSRB: VEX_Vpinsrb_xmm_xmm_r32m8_imm8 - - - -;
    VPINSRW: VEX_Vpinsrw_xmm_xmm_r32m16_imm8 - - - -;
    VPTEST: VEX_Vptest_xmm_xmmm128 VEX_Vptest_ymm_ymmm256 - - -;
}
