//! Emission of loads, stores and gathers.

use super::emit::{Emit, form_part};
use super::ir::{Form, Key, Src, Step};
use super::locations::{LaneLocation, Locations, Tail};
use kiln_x86::{Condition, Gpr, Mask, MaskOp, Mem, Op, Vreg, Width, op};

/// Returns the byte offset of a form's register in a group of lanes.
fn part_offset(form: Form, full: Width) -> i32 {
    match form {
        Form::Double(1) => full.bytes() as i32,
        Form::Unsigned(1) => full.bytes() as i32 / 2,
        _ => 0,
    }
}

impl<P: Locations> Emit<'_, P> {
    fn width(&self) -> Width {
        self.ir.target.width()
    }

    /// With VEX, loads the mask of the tail's lanes as a vector. With EVEX, the returned register is meaningless.
    pub(super) fn tail_vector(
        &mut self,
        tail: Tail,
        wide: bool,
        part: u8,
        now: u32,
        busy: &[Option<Src>],
    ) -> Vreg {
        match tail {
            Tail::Bits { .. } => Vreg(0),
            Tail::Memory { mask, .. } => {
                let r = self.take_temporary(now, busy);
                let address = mask.plus(16 * i32::from(part));
                match wide {
                    true => self.asm.op(op::VPMOVSXDQ, Width::Y, (r, address)),
                    false => self.asm.op(op::VMOVUPS, Width::Y, (r, mask)),
                }
                r
            }
        }
    }

    /// Loads elements in the given form from memory into a register.
    pub(super) fn load_vector(&mut self, location: LaneLocation, form: Form, to: Vreg, now: u32) {
        let full = self.width();
        let from = match location {
            LaneLocation::Splat(m) => return self.load_splat(m, form, to),
            LaneLocation::Lanes { first, plus } => return self.load_lanes(first, plus, form, to),
            LaneLocation::Vector(m) | LaneLocation::Stream(m) => m.plus(part_offset(form, full)),
            LaneLocation::Register { .. } => panic!("registers are not loaded"),
        };
        let op = match form {
            Form::Word => op::VMOVUPS,
            Form::Double(_) => op::VMOVUPD,
            Form::Byte { signed: false } => op::VPMOVZXBD,
            Form::Byte { signed: true } => op::VPMOVSXBD,
            Form::Short { signed: false } => op::VPMOVZXWD,
            Form::Short { signed: true } => op::VPMOVSXWD,
            Form::Half => op::VCVTPH2PS,
            Form::Unsigned(_) => op::VPMOVZXDQ,
            Form::Bits | Form::Shorts | Form::Bytes => panic!("{form:?} is not loaded"),
        };
        let is_upper = form_part(form) == 1;
        match self.tail {
            None => self.asm.op(op, full, (to, from)),
            Some(Tail::Bits { low, high }) => {
                let k = if is_upper { high } else { low };
                self.asm.masked(op, full, (k, true), (to, from));
            }
            Some(tail @ Tail::Memory { lanes, .. }) => {
                let wide = matches!(form, Form::Double(_));
                let size = match form {
                    Form::Word | Form::Double(_) | Form::Unsigned(_) => None,
                    Form::Byte { .. } => Some((op::VPINSRB, 1)),
                    _ => Some((op::VPINSRW, 2)),
                };
                match (size, form) {
                    (Some((insert, size)), _) => {
                        self.asm.op(op::VXORPS, Width::X, (to, to, to));
                        self.for_each_lane(lanes, |asm, lane| {
                            let element = from.plus(size * i32::from(lane));
                            asm.op(insert, Width::X, (to, to, element, lane));
                        });
                        self.asm.op(op, full, (to, to));
                    }
                    (None, Form::Unsigned(p)) => {
                        let mask = self.tail_vector(tail, false, 0, now, &[]);
                        if p == 1 {
                            self.asm.op(op::VEXTRACT128, Width::Y, (mask, mask, 1u8));
                        }
                        self.asm.op(op::VMASKMOVPS, Width::X, (to, mask, from));
                        self.asm.op(op, full, (to, to));
                    }
                    _ => {
                        let mask = self.tail_vector(tail, wide, form_part(form) as u8, now, &[]);
                        let op = if wide { op::VMASKMOVPD } else { op::VMASKMOVPS };
                        self.asm.op(op, full, (to, mask, from));
                    }
                }
            }
        }
    }

    /// Emits code for each of the first `lanes` lanes.
    fn for_each_lane(&mut self, lanes: Gpr, mut f: impl FnMut(&mut kiln_x86::Asm, u8)) {
        let end = self.asm.label();
        for lane in 0..8 {
            self.asm.cmp_number(lanes, i32::from(lane));
            self.asm.jump_if(Condition::LessOrEqual, end);
            f(self.asm, lane);
        }
        self.asm.bind(end);
    }

    fn load_splat(&mut self, from: Mem, form: Form, to: Vreg) {
        let full = self.width();
        let half = full.half();
        match form {
            Form::Word => self.asm.op(op::VBROADCASTSS, full, (to, from)),
            Form::Double(_) => self.asm.op(op::VBROADCASTSD, full, (to, from)),
            Form::Byte { signed } => {
                self.asm.op(op::VPBROADCASTB, Width::X, (to, from));
                let op = if signed { op::VPMOVSXBD } else { op::VPMOVZXBD };
                self.asm.op(op, full, (to, to));
            }
            Form::Short { signed } => {
                self.asm.op(op::VPBROADCASTW, half, (to, from));
                let op = if signed { op::VPMOVSXWD } else { op::VPMOVZXWD };
                self.asm.op(op, full, (to, to));
            }
            Form::Half => {
                self.asm.op(op::VPBROADCASTW, half, (to, from));
                self.asm.op(op::VCVTPH2PS, full, (to, to));
            }
            Form::Unsigned(_) => {
                self.asm.op(op::VPBROADCASTD, half, (to, from));
                self.asm.op(op::VPMOVZXDQ, full, (to, to));
            }
            Form::Bits | Form::Shorts | Form::Bytes => panic!("{form:?} is not loaded"),
        }
    }

    /// Emits a masked gather.
    pub(super) fn emit_gather(&mut self, key: Key, wide: bool, step: &Step, now: u32) {
        let [Some(fill), Some(indices), Some(last @ Src::Virt(mask))] = step.from else {
            panic!("a gather has three sources");
        };
        let LaneLocation::Splat(base) = self.lane_location(key, step) else {
            panic!("a gather is from memory");
        };
        let (width, busy) = (self.width(), &step.from);
        let addresses = self.register(indices, now, busy);
        let from = base.gather(addresses, width, if wide { 8 } else { 4 });
        let op = if wide { op::VPGATHERQQ } else { op::VPGATHERDD };
        // Gathers clear their mask, so it is copied.
        if self.ir.target.evex {
            let k = self.take_mask(now, busy);
            let mask = self.mask(mask);
            self.asm.mask_op(MaskOp::And, k, mask, mask);
            let to = self.overwrite(fill, &[indices, last], step, now);
            self.asm.masked(op, width, (k, false), (to, from));
            self.masks.push(k);
        } else {
            let (k, mask) = (self.take_temporary(now, busy), self.vector(mask));
            self.asm.op(op::VMOVAPS, width, (k, mask));
            let to = self.overwrite(fill, &[indices, last], step, now);
            self.asm.op(op, width, (to, from, k));
        }
    }

    /// Computes the 64-bit indices of the lanes, from `first + plus` on.
    fn load_lanes(&mut self, first: Gpr, plus: i32, form: Form, to: Vreg) {
        let full = self.width();
        let lanes = full.bytes() as i64 / 8;
        let start = i64::from(plus) + form_part(form) as i64 * lanes;
        let offsets: Vec<u8> = (start..start + lanes).flat_map(i64::to_le_bytes).collect();
        let offsets = self.asm.constant(&offsets);
        if self.ir.target.evex {
            self.asm.op(op::VPBROADCASTQ_GPR, full, (to, first));
        } else {
            self.asm.op(op::VMOVQ_FROM_GPR, Width::X, (to, first));
            self.asm.op(op::VPBROADCASTQ, full, (to, to));
        }
        self.asm.op(op::VPADDQ, full, (to, to, offsets));
    }

    /// Loads bytes as a mask of those that are not 0; `r` is a temporary register.
    pub(super) fn load_bits(&mut self, location: LaneLocation, to: Mask, r: Vreg) {
        match (location, self.tail) {
            (LaneLocation::Splat(m), _) => self.asm.op(op::VPBROADCASTB, Width::X, (r, m)),
            (LaneLocation::Vector(m) | LaneLocation::Stream(m), Some(Tail::Bits { low, .. })) => {
                self.asm.masked(op::VMOVDQU8, Width::X, (low, true), (r, m));
            }
            (LaneLocation::Vector(m) | LaneLocation::Stream(m), _) => {
                self.asm.op(op::VMOVDQU, Width::X, (r, m));
            }
            (LaneLocation::Register { .. } | LaneLocation::Lanes { .. }, _) => {
                panic!("bytes are in memory")
            }
        }
        self.asm.op(op::VPTESTMB, Width::X, (to, r, r));
    }

    /// Stores a mask as bytes of 0 and 1.
    pub(super) fn store_bits(&mut self, location: LaneLocation, from: Mask, r: Vreg) {
        let (LaneLocation::Vector(m) | LaneLocation::Stream(m)) = location else {
            panic!("bytes are stored side by side");
        };
        let ones = self.asm.constant(&[1; 16]);
        self.asm
            .masked(op::VMOVDQU8, Width::X, (from, true), (r, ones));
        match self.tail {
            Some(Tail::Bits { low, .. }) => {
                self.asm
                    .masked(op::VMOVDQU8_STORE, Width::X, (low, false), (m, r));
            }
            _ => self.asm.op(op::VMOVDQU_STORE, Width::X, (m, r)),
        }
    }

    /// Stores a register as elements in memory.
    pub(super) fn store_vector(
        &mut self,
        location: LaneLocation,
        form: Form,
        from: Vreg,
        now: u32,
        busy: &[Option<Src>],
    ) {
        let full = self.width();
        let (to, stream) = match location {
            LaneLocation::Vector(m) => (m, false),
            LaneLocation::Stream(m) => (m, true),
            location => panic!("a store to {location:?}"),
        };
        let to = to.plus(part_offset(form, full));
        let is_upper = form_part(form) == 1;
        let tail = self.tail;
        let store_masked = |op: Op, emit: &mut Self| match tail {
            Some(Tail::Bits { low, high }) => {
                let k = if is_upper { high } else { low };
                emit.asm.masked(op, full, (k, false), (to, from));
            }
            _ => emit.asm.op(op, full, (to, from)),
        };
        match (form, tail) {
            (Form::Word | Form::Double(_), None) if stream => {
                self.asm.op(op::VMOVNTPS, full, (to, from));
            }
            (Form::Word | Form::Double(_), Some(t @ Tail::Memory { .. })) => {
                let wide = matches!(form, Form::Double(_));
                let mask = self.tail_vector(t, wide, form_part(form) as u8, now, busy);
                let op = if wide {
                    op::VMASKMOVPD_STORE
                } else {
                    op::VMASKMOVPS_STORE
                };
                self.asm.op(op, full, (to, mask, from));
            }
            (Form::Word, _) => store_masked(op::VMOVUPS_STORE, self),
            (Form::Double(_), _) => store_masked(op::VMOVUPD_STORE, self),
            (Form::Byte { .. }, _) => store_masked(op::VPMOVDB, self),
            (Form::Short { .. }, _) => store_masked(op::VPMOVDW, self),
            (Form::Unsigned(_), _) => store_masked(op::VPMOVQD, self),
            (Form::Half, Some(Tail::Memory { lanes, .. })) => {
                let r = self.take_temporary(now, busy);
                self.asm.op(op::VCVTPS2PH, full, (r, from, 0u8));
                self.store_lanes(lanes, op::VPEXTRW, 2, to, r);
            }
            (Form::Half, Some(Tail::Bits { low, .. })) => {
                self.asm
                    .masked(op::VCVTPS2PH, full, (low, false), (to, from, 0u8));
            }
            (Form::Half, None) => self.asm.op(op::VCVTPS2PH, full, (to, from, 0u8)),
            (Form::Shorts, Some(Tail::Memory { lanes, .. })) => {
                self.store_lanes(lanes, op::VPEXTRW, 2, to, from);
            }
            (Form::Shorts, _) => self.asm.op(op::VMOVDQU_STORE, Width::X, (to, from)),
            (Form::Bytes, Some(Tail::Memory { lanes, .. })) => {
                self.store_lanes(lanes, op::VPEXTRB, 1, to, from);
            }
            (Form::Bytes, _) => self.asm.op(op::VMOVSD_STORE, Width::X, (to, from)),
            (Form::Bits, _) => panic!("masks are stored as bytes"),
        }
    }

    fn store_lanes(&mut self, lanes: Gpr, extract: Op, size: i32, to: Mem, from: Vreg) {
        self.for_each_lane(lanes, |asm, lane| {
            let element = to.plus(size * i32::from(lane));
            asm.op(extract, Width::X, (element, from, lane));
        });
    }
}
