//! Tests of machine code as text.
#![cfg(target_arch = "x86_64")]

use kiln_x86::{Asm, Condition, Gpr, Mem, Vreg, Width, disassemble, op};

#[test]
fn text_has_labels_and_constants() {
    let mut a = Asm::new(true);
    let end = a.label();
    let two = a.constant(&2.0f32.to_le_bytes());
    let top = a.here();
    a.cmp_number(Gpr::RDX, 0);
    a.jump_if(Condition::Equal, end);
    a.op(op::VMULPS, Width::Z, (Vreg(17), Vreg(2), two.broadcast()));
    let to = Mem::at(Gpr::RSI).index(Gpr::RDX, 4).plus(-64);
    a.op(op::VMOVUPS_STORE, Width::Z, (to, Vreg(17)));
    a.jump(top);
    a.bind(end);
    a.leave(&[], 0);
    let expected = "L0:
    0000  cmp rdx,0
    0007  je L1
    000d  vmulps zmm17,zmm2,[data_0040]{1to16}
    0017  vmovups [rsi+rdx*4-40h],zmm17
    001f  jmp L0
L1:
    0024  vzeroupper
    0027  ret
    0040   00000040
";
    assert_eq!(disassemble(&a.finish()), expected);
}
