//! General registers, the stack and jumps.

use crate::cpu::Action;
use crate::cpu::{Cpu, Flags, RSP, ones};
use crate::fault::{FaultKind, Outcome, raise};
use crate::step::{OperandLocation, Step};
use iced_x86::Mnemonic::{self, *};

pub(super) fn action(step: &Step) -> Option<Action> {
    use OperandLocation::{Branch, Gpr, None as Absent};
    let has_form = match step.mnemonic {
        Imul => step.operands[1] != Absent,
        Jmp => matches!(step.operands[0], Branch(_)),
        Ret => step.operands[0] == Absent,
        Call => matches!(step.operands[0], Gpr(_, 8)),
        _ => true,
    };
    if has_form { of_mnemonic(step) } else { None }
}

fn of_mnemonic(step: &Step) -> Option<Action> {
    actions! { step;
        Mov | Movzx => |c, s| c.apply(s, 1, |x| x);
        Movsx | Movsxd => |c, s| c.apply(s, 1, |x| signed(x, s.bytes(1)) as u64);
        Lea => |c, s| {
            let OperandLocation::Memory(m) = &s.operands[1] else {
                return raise(FaultKind::Unknown, "no address");
            };
            let x = c.address(m);
            c.set_value(s, 0, x)
        };
        Push => |c, s| {
            let x = c.value(s, 0)?;
            c.push(x)
        };
        Pop => |c, s| {
            let x = c.pop()?;
            c.set_value(s, 0, x)
        };
        Cmovb | Cmovae | Cmove | Cmovne | Cmovbe | Cmova | Cmovs | Cmovns | Cmovp | Cmovnp | Cmovl | Cmovge | Cmovle
            | Cmovg => |c, s| {
            let from = usize::from(c.holds(s.mnemonic)?);
            c.apply(s, from, |x| x)
        };
        Setb | Setae | Sete | Setne | Setbe | Seta | Sets | Setns | Setp | Setnp | Setl | Setge | Setle | Setg
            => |c, s| {
            let x = c.holds(s.mnemonic)?;
            c.set_value(s, 0, u64::from(x))
        };
        Add => |c, s| {
            let sum = c.sum_flags(c.value(s, 0)?, c.value(s, 1)?, s.bytes(0));
            c.set_value(s, 0, sum)
        };
        Sub => |c, s| {
            let difference = c.difference_flags(c.value(s, 0)?, c.value(s, 1)?, s.bytes(0));
            c.set_value(s, 0, difference)
        };
        Cmp => |c, s| {
            c.difference_flags(c.value(s, 0)?, c.value(s, 1)?, s.bytes(0));
            Ok(())
        };
        And => |c, s| c.logic(s, |a, b| a & b);
        Or => |c, s| c.logic(s, |a, b| a | b);
        Xor => |c, s| c.logic(s, |a, b| a ^ b);
        Test => |c, s| {
            let x = c.value(s, 0)? & c.value(s, 1)?;
            c.result_flags(x, s.bytes(0));
            Ok(())
        };
        Not => |c, s| c.apply(s, 0, |x| !x);
        Neg => |c, s| {
            let difference = c.difference_flags(0, c.value(s, 0)?, s.bytes(0));
            c.set_value(s, 0, difference)
        };
        Inc | Dec => |c, s| {
            let (x, bytes, carry) = (c.value(s, 0)?, s.bytes(0), c.flags.carry);
            let x = match s.mnemonic {
                Inc => c.sum_flags(x, 1, bytes),
                _ => c.difference_flags(x, 1, bytes),
            };
            c.flags.carry = carry;
            c.set_value(s, 0, x)
        };
        Imul => multiply;
        Popcnt => |c, s| {
            let x = c.value(s, 1)?;
            c.set_value(s, 0, u64::from(x.count_ones()))?;
            c.flags = Flags { zero: Some(x == 0), ..Flags::CLEARED };
            Ok(())
        };
        Tzcnt => |c, s| {
            let (x, bits) = (c.value(s, 1)?, 8 * s.bytes(1) as u64);
            let n = u64::from(x.trailing_zeros()).min(bits);
            c.flags = Flags { zero: Some(n == 0), carry: Some(n == bits), ..Flags::default() };
            c.set_value(s, 0, n)
        };
        Shl | Shr | Sar => shift;
        Shlx | Shrx | Sarx => |c, s| {
            let by = c.value(s, 2)? as u32 & (8 * s.bytes(0) as u32 - 1);
            c.apply(s, 1, |x| match s.mnemonic {
                Shlx => x << by,
                Shrx => x >> by,
                _ => (signed(x, s.bytes(0)) >> by) as u64,
            })
        };
        Bzhi => |c, s| {
            let (x, bits) = (c.value(s, 1)?, 8 * s.bytes(0));
            let by = c.value(s, 2)? as u8 as usize;
            let kept = x & ones(by.min(bits));
            c.result_flags(kept, s.bytes(0));
            c.flags.carry = Some(by >= bits);
            c.flags.parity = None;
            c.set_value(s, 0, kept)
        };
        Jmp => |c, s| {
            c.next = c.value(s, 0)?;
            Ok(())
        };
        Jb | Jae | Je | Jne | Jbe | Ja | Js | Jns | Jp | Jnp | Jl | Jge | Jle | Jg => |c, s| {
            if c.holds(s.mnemonic)? {
                c.next = c.value(s, 0)?;
            }
            Ok(())
        };
        Ret => |c, _| {
            c.next = c.pop()?;
            Ok(())
        };
        Call => |c, s| {
            let to = c.value(s, 0)?;
            c.call(to)
        };
        Leave => |c, _| {
            c.gprs[RSP] = c.gprs[5];
            c.gprs[5] = c.pop()?;
            Ok(())
        };
        Vzeroupper => |c, _| {
            c.vectors[..16].iter_mut().for_each(|v| v.0[16..].fill(0));
            Ok(())
        };
        Nop | Endbr64 | Sfence | Lfence | Mfence | Pause | Prefetcht0 | Prefetcht1 | Prefetcht2 | Prefetchnta
            | Prefetchw => |_, _| Ok(());
    }
}

/// The value of an integer of `bytes` bytes, sign-extended.
fn signed(x: u64, bytes: usize) -> i64 {
    let unused = 64 - 8 * bytes.min(8) as u32;
    (x << unused) as i64 >> unused
}

fn multiply(cpu: &mut Cpu, step: &Step) -> Outcome<()> {
    let first = usize::from(step.operands[2] != OperandLocation::None);
    let bytes = step.bytes(0);
    let factor = |i| cpu.value(step, i).map(|x| i128::from(signed(x, bytes)));
    let product = factor(first)? * factor(first + 1)?;
    let overflows = product != i128::from(signed(product as u64, bytes));
    cpu.flags = Flags {
        carry: Some(overflows),
        overflow: Some(overflows),
        ..Flags::default()
    };
    cpu.set_value(step, 0, product as u64)
}

fn shift(cpu: &mut Cpu, step: &Step) -> Outcome<()> {
    let (x, bytes) = (cpu.value(step, 0)?, step.bytes(0));
    let bits = 8 * bytes as u32;
    let by = cpu.value(step, 1)? as u32 & if bits == 64 { 63 } else { 31 };
    if by == 0 {
        return cpu.set_value(step, 0, x);
    }
    let wide = u128::from(x);
    let (result, carry) = match step.mnemonic {
        Shl => ((wide << by) as u64, wide << by >> bits & 1 == 1),
        Shr => ((wide >> by) as u64, wide >> (by - 1) & 1 == 1),
        _ => {
            let x = i128::from(signed(x, bytes));
            ((x >> by) as u64, x >> (by - 1) & 1 == 1)
        }
    };
    cpu.result_flags(result, bytes);
    let top = |x: u64| x >> (bits - 1) & 1 == 1;
    let overflow = match step.mnemonic {
        Shl => top(result) != carry,
        Shr => top(x),
        _ => false,
    };
    let defined = by <= bits || step.mnemonic == Sar;
    cpu.flags.carry = defined.then_some(carry);
    cpu.flags.overflow = (by == 1).then_some(overflow);
    cpu.set_value(step, 0, result)
}

impl Cpu<'_, '_> {
    /// Sets parity, zero and sign for a result of `bytes` bytes; clears carry and overflow.
    fn result_flags(&mut self, result: u64, bytes: usize) {
        self.flags = Flags {
            carry: Some(false),
            overflow: Some(false),
            parity: Some((result as u8).count_ones().is_multiple_of(2)),
            zero: Some(result & ones(8 * bytes) == 0),
            sign: Some(signed(result, bytes) < 0),
        };
    }

    fn sum_flags(&mut self, a: u64, b: u64, bytes: usize) -> u64 {
        let all = ones(8 * bytes);
        let sum = a.wrapping_add(b);
        let signs = signed(a, bytes).checked_add(signed(b, bytes));
        self.result_flags(sum, bytes);
        self.flags.carry = Some(u128::from(a & all) + u128::from(b & all) > u128::from(all));
        self.flags.overflow = Some(signs.is_none_or(|s| s != signed(sum, bytes)));
        sum
    }

    fn difference_flags(&mut self, a: u64, b: u64, bytes: usize) -> u64 {
        let all = ones(8 * bytes);
        let difference = a.wrapping_sub(b);
        let signs = signed(a, bytes).checked_sub(signed(b, bytes));
        self.result_flags(difference, bytes);
        self.flags.carry = Some(a & all < b & all);
        self.flags.overflow = Some(signs.is_none_or(|s| s != signed(difference, bytes)));
        difference
    }

    /// `operand 0 = f(operand 0, operand 1)`, with the flags of the result.
    fn logic(&mut self, step: &Step, f: impl Fn(u64, u64) -> u64) -> Outcome<()> {
        let result = f(self.value(step, 0)?, self.value(step, 1)?);
        self.result_flags(result, step.bytes(0));
        self.set_value(step, 0, result)
    }

    /// True if the condition of an instruction holds.
    fn holds(&self, mnemonic: Mnemonic) -> Outcome<bool> {
        let flag = |flag: Option<bool>, name: &str| {
            let message = || format!("depends on the {name} flag, which no instruction set");
            flag.map_or_else(|| raise(FaultKind::UndefinedFlag, message()), Ok)
        };
        let carry = || flag(self.flags.carry, "carry");
        let zero = || flag(self.flags.zero, "zero");
        let sign = || flag(self.flags.sign, "sign");
        let less = || Ok(sign()? != flag(self.flags.overflow, "overflow")?);
        Ok(match mnemonic {
            Jb | Cmovb | Setb => carry()?,
            Jae | Cmovae | Setae => !carry()?,
            Je | Cmove | Sete => zero()?,
            Jne | Cmovne | Setne => !zero()?,
            Jbe | Cmovbe | Setbe => carry()? | zero()?,
            Ja | Cmova | Seta => !(carry()? | zero()?),
            Js | Cmovs | Sets => sign()?,
            Jns | Cmovns | Setns => !sign()?,
            Jp | Cmovp | Setp => flag(self.flags.parity, "parity")?,
            Jnp | Cmovnp | Setnp => !flag(self.flags.parity, "parity")?,
            Jl | Cmovl | Setl => less()?,
            Jge | Cmovge | Setge => !less()?,
            Jle | Cmovle | Setle => less()? | zero()?,
            _ => !(less()? | zero()?),
        })
    }
}
