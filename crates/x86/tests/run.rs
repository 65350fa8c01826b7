//! Small functions that are run.
#![cfg(all(target_arch = "x86_64", unix))]

use kiln_x86::{Asm, Code, Condition, Gpr, Mask, Mem, Vreg, Width, op};

#[test]
fn a_loop_with_a_constant_adds_up() {
    if !is_x86_feature_detected!("avx2") {
        return;
    }
    let mut a = Asm::new(false);
    let [from, to, bytes] = [Gpr::RDI, Gpr::RSI, Gpr::RDX];
    let saved = [Gpr::R12, Gpr::RBX];
    a.enter(&saved, 40);
    let half = a.constant(&0.5f32.to_le_bytes());
    a.op(op::VBROADCASTSS, Width::Y, (Vreg(9), half));
    a.mov_number(Gpr::R12, 0);
    a.align(16);
    let top = a.here();
    a.op(
        op::VMOVUPS,
        Width::Y,
        (Vreg(1), Mem::at(from).index(Gpr::R12, 1)),
    );
    a.op(op::VADDPS, Width::Y, (Vreg(1), Vreg(1), Vreg(9)));
    a.op(
        op::VMOVUPS_STORE,
        Width::Y,
        (Mem::at(to).index(Gpr::R12, 1), Vreg(1)),
    );
    a.add_number(Gpr::R12, 32);
    a.cmp(Gpr::R12, bytes);
    a.jump_if(Condition::Below, top);
    a.leave(&saved, 40);
    let code = Code::new(&a.finish()).unwrap();
    // SAFETY: the code is a function of these arguments.
    let f: extern "sysv64" fn(*const f32, *mut f32, usize) =
        unsafe { std::mem::transmute(code.entry()) };
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let mut y = vec![0.0; 64];
    f(x.as_ptr(), y.as_mut_ptr(), 4 * 64);
    assert!(x.iter().zip(&y).all(|(x, y)| x + 0.5 == *y), "{y:?}");
}

#[test]
fn a_mask_leaves_the_rest_alone() {
    if !is_x86_feature_detected!("avx512bw") {
        return;
    }
    let mut a = Asm::new(true);
    a.kmov(Mask(1), Gpr::RDX);
    let ones = a.constant(&1.0f32.to_le_bytes());
    a.masked(
        op::VMOVUPS,
        Width::Z,
        (Mask(1), true),
        (Vreg(17), Mem::at(Gpr::RDI)),
    );
    a.op(op::VADDPS, Width::Z, (Vreg(31), Vreg(17), ones.broadcast()));
    a.masked(
        op::VMOVUPS_STORE,
        Width::Z,
        (Mask(1), false),
        (Mem::at(Gpr::RSI), Vreg(31)),
    );
    a.leave(&[], 0);
    let code = Code::new(&a.finish()).unwrap();
    // SAFETY: as above.
    let f: extern "sysv64" fn(*const f32, *mut f32, u64) =
        unsafe { std::mem::transmute(code.entry()) };
    let x = [2.0f32; 16];
    let mut y = [0.0f32; 16];
    f(x.as_ptr(), y.as_mut_ptr(), 0b111);
    assert_eq!(y[..5], [3.0, 3.0, 3.0, 0.0, 0.0]);
}
