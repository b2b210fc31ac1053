//! An assembler for the part of x86-64 that vector code needs: instructions as bytes, labels, and constants that stand
//! behind the code and are addressed relative to it.
//!
//! The same instruction on 256 and on 512 bits differs in its prefix alone (VEX or EVEX), so most of them have one name here.

use std::collections::HashMap;

/// A general register by its number in the encoding.
pub type Gpr = u8;

pub const RAX: Gpr = 0;
pub const RCX: Gpr = 1;
pub const RDX: Gpr = 2;
pub const RBX: Gpr = 3;
pub const RSP: Gpr = 4;
pub const RBP: Gpr = 5;
pub const RSI: Gpr = 6;
pub const RDI: Gpr = 7;

/// An address: base + index * 2^scale + disp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mem {
    pub base: Gpr,
    /// In gathers the number of a vector register.
    pub index: Option<u8>,
    pub scale: u8,
    pub disp: i32,
}

impl Mem {
    pub fn at(base: Gpr, disp: i32) -> Mem {
        Mem { base, index: None, scale: 0, disp }
    }
}

/// The last operand of an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rm {
    Reg(u8),
    Mem(Mem),
    /// A constant behind the code, by its offset there.
    Pool(u32),
    /// The same one for every lane (EVEX only).
    Spread(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Length {
    X = 0,
    Y = 1,
    Z = 2,
}

impl Length {
    fn bytes(self) -> i32 {
        16 << self as i32
    }
}

/// An instruction of the VEX and EVEX encodings.
#[derive(Clone, Copy, Debug)]
pub struct Code {
    /// 1: 0F, 2: 0F38, 3: 0F3A.
    pub map: u8,
    /// 0: none, 1: 66, 2: F3, 3: F2.
    pub pp: u8,
    pub w: bool,
    pub op: u8,
    /// How much of a vector a memory operand is.
    pub part: Part,
}

#[derive(Clone, Copy, Debug)]
pub enum Part {
    Full,
    Half,
    Quarter,
    /// So many bytes.
    Bytes(u8),
}

pub const fn code(map: u8, pp: u8, op: u8) -> Code {
    Code { map, pp, w: false, op, part: Part::Full }
}

impl Code {
    pub const fn part(self, part: Part) -> Code {
        Code { part, ..self }
    }

    pub const fn w(self) -> Code {
        Code { w: true, ..self }
    }
}

/// The mask of an EVEX instruction: which register, and whether other lanes become zero (else they stay).
#[derive(Clone, Copy, Default, Debug)]
pub struct Masked {
    pub by: u8,
    pub zero: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// Conditions of jumps by their number in the encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Condition {
    Below = 2,
    NotBelow = 3,
    Zero = 4,
    NotZero = 5,
}

pub struct Asm {
    pub bytes: Vec<u8>,
    /// Whether vectors have 512 bits (EVEX).
    pub wide: bool,
    labels: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
    pool: Vec<u8>,
    pooled: HashMap<Vec<u8>, u32>,
    /// Where an address of the pool stands, the offset in the pool, and how many bytes of the instruction follow.
    uses: Vec<(usize, u32, usize)>,
}

impl Asm {
    pub fn new(wide: bool) -> Asm {
        Asm {
            bytes: Vec::new(),
            wide,
            labels: Vec::new(),
            jumps: Vec::new(),
            pool: Vec::new(),
            pooled: HashMap::new(),
            uses: Vec::new(),
        }
    }

    pub fn length(&self) -> Length {
        if self.wide { Length::Z } else { Length::Y }
    }

    // ---- constants

    /// The offset of a constant, aligned to its size.
    pub fn pool(&mut self, bytes: &[u8]) -> u32 {
        if let Some(at) = self.pooled.get(bytes) {
            return *at;
        }
        self.pool.resize(self.pool.len().next_multiple_of(bytes.len()), 0);
        let at = self.pool.len() as u32;
        self.pool.extend(bytes);
        self.pooled.insert(bytes.to_vec(), at);
        at
    }

    /// The whole: code, then constants, if it begins at a multiple of 64.
    pub fn finish(mut self) -> Vec<u8> {
        for (at, label) in std::mem::take(&mut self.jumps) {
            let to = self.labels[label.0].expect("every label is set");
            self.patch(at, to as i64 - (at as i64 + 4));
        }
        if !self.pool.is_empty() {
            self.bytes.resize(self.bytes.len().next_multiple_of(64), 0xCC);
        }
        let start = self.bytes.len();
        for (at, offset, after) in std::mem::take(&mut self.uses) {
            self.patch(at, (start + offset as usize) as i64 - (at + 4 + after) as i64);
        }
        let pool = std::mem::take(&mut self.pool);
        self.bytes.extend(pool);
        self.bytes
    }

    fn patch(&mut self, at: usize, value: i64) {
        let value = i32::try_from(value).expect("a function is smaller than 2 GiB");
        self.bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    // ---- operands

    /// ModRM, SIB and displacement; `unit`: bytes that a short displacement counts; `after`: bytes of the instruction behind it.
    fn operand(&mut self, reg: u8, rm: Rm, unit: i32, after: usize) {
        let reg = (reg & 7) << 3;
        match rm {
            Rm::Reg(r) => self.bytes.push(0xC0 | reg | (r & 7)),
            Rm::Pool(offset) | Rm::Spread(offset) => {
                self.bytes.push(reg | 5);
                self.uses.push((self.bytes.len(), offset, after));
                self.bytes.extend([0; 4]);
            }
            Rm::Mem(m) => {
                let short = m.disp % unit == 0 && i8::try_from(m.disp / unit).is_ok();
                let mode = if m.disp == 0 && m.base & 7 != 5 {
                    0
                } else if short {
                    0x40
                } else {
                    0x80
                };
                match m.index {
                    Some(index) => {
                        self.bytes.push(mode | reg | 4);
                        self.bytes.push(m.scale << 6 | (index & 7) << 3 | (m.base & 7));
                    }
                    None if m.base & 7 == 4 => {
                        self.bytes.push(mode | reg | 4);
                        self.bytes.push(0x24);
                    }
                    None => self.bytes.push(mode | reg | (m.base & 7)),
                }
                match mode {
                    0 => {}
                    0x40 => self.bytes.push((m.disp / unit) as i8 as u8),
                    _ => self.bytes.extend(m.disp.to_le_bytes()),
                }
            }
        }
    }

    // ---- vectors

    /// The bits that extend the numbers of the last operand: of an index (or a vector's fifth bit), and of a base.
    fn extension(rm: Rm) -> (u8, u8) {
        match rm {
            Rm::Reg(r) => (r >> 4 & 1, r >> 3 & 1),
            Rm::Mem(m) => (m.index.map_or(0, |i| i >> 3 & 1), m.base >> 3 & 1),
            Rm::Pool(_) | Rm::Spread(_) => (0, 0),
        }
    }

    /// `reg = op(second, rm)` in the EVEX encoding.
    #[allow(clippy::too_many_arguments)]
    pub fn evex(&mut self, c: Code, length: Length, reg: u8, second: u8, rm: Rm, mask: Masked, imm: Option<u8>) {
        let (x, b) = Asm::extension(rm);
        // The fifth bit of a gather's index stands where that of the second operand does.
        let fifth = match rm {
            Rm::Mem(Mem { index: Some(i), .. }) if i >= 16 => 1,
            _ => second >> 4 & 1,
        };
        let spread = matches!(rm, Rm::Spread(_));
        self.bytes.push(0x62);
        self.bytes.push((!(reg >> 3) & 1) << 7 | (!x & 1) << 6 | (!b & 1) << 5 | (!(reg >> 4) & 1) << 4 | c.map);
        self.bytes.push(u8::from(c.w) << 7 | (!second & 15) << 3 | 4 | c.pp);
        self.bytes
            .push(u8::from(mask.zero) << 7 | (length as u8) << 5 | u8::from(spread) << 4 | (!fifth & 1) << 3 | mask.by);
        self.bytes.push(c.op);
        let unit = match c.part {
            Part::Full => length.bytes(),
            Part::Half => length.bytes() / 2,
            Part::Quarter => length.bytes() / 4,
            Part::Bytes(n) => i32::from(n),
        };
        self.operand(reg, rm, unit, usize::from(imm.is_some()));
        self.bytes.extend(imm);
    }

    /// The same in the VEX encoding.
    pub fn vex(&mut self, c: Code, length: Length, reg: u8, second: u8, rm: Rm, imm: Option<u8>) {
        let (x, b) = Asm::extension(rm);
        let x = if matches!(rm, Rm::Reg(_)) { 0 } else { x };
        self.bytes.push(0xC4);
        self.bytes.push((!(reg >> 3) & 1) << 7 | (!x & 1) << 6 | (!b & 1) << 5 | c.map);
        self.bytes.push(u8::from(c.w) << 7 | (!second & 15) << 3 | u8::from(length != Length::X) << 2 | c.pp);
        self.bytes.push(c.op);
        self.operand(reg, rm, 1, usize::from(imm.is_some()));
        self.bytes.extend(imm);
    }

    /// On whole vectors, in the encoding of this assembler's width.
    pub fn vector(&mut self, c: Code, reg: u8, second: u8, rm: Rm, imm: Option<u8>) {
        self.sized(c, self.length(), reg, second, rm, imm);
    }

    /// On vectors of a length, in the encoding of this assembler's width.
    pub fn sized(&mut self, c: Code, length: Length, reg: u8, second: u8, rm: Rm, imm: Option<u8>) {
        if self.wide {
            self.evex(c, length, reg, second, rm, Masked::default(), imm);
        } else {
            self.vex(c, length, reg, second, rm, imm);
        }
    }

    // ---- general registers

    /// An instruction with the prefix REX; `long`: on 64 bits.
    pub fn general(&mut self, long: bool, op: &[u8], reg: u8, rm: Rm, imm: &[u8]) {
        let (x, b) = Asm::extension(rm);
        let x = if matches!(rm, Rm::Reg(_)) { 0 } else { x };
        let rex = 0x40 | u8::from(long) << 3 | (reg >> 3 & 1) << 2 | x << 1 | b;
        if rex != 0x40 {
            self.bytes.push(rex);
        }
        self.bytes.extend(op);
        self.operand(reg, rm, 1, imm.len());
        self.bytes.extend(imm);
    }

    pub fn mov(&mut self, to: Gpr, from: Rm) {
        self.general(true, &[0x8B], to, from, &[]);
    }

    pub fn store(&mut self, to: Mem, from: Gpr) {
        self.general(true, &[0x89], from, Rm::Mem(to), &[]);
    }

    pub fn constant(&mut self, to: Gpr, value: i64) {
        if let Ok(value) = u32::try_from(value) {
            if to >= 8 {
                self.bytes.push(0x41);
            }
            self.bytes.push(0xB8 | (to & 7));
            self.bytes.extend(value.to_le_bytes());
        } else if let Ok(value) = i32::try_from(value) {
            self.general(true, &[0xC7], 0, Rm::Reg(to), &value.to_le_bytes());
        } else {
            self.bytes.push(0x48 | to >> 3);
            self.bytes.push(0xB8 | (to & 7));
            self.bytes.extend(value.to_le_bytes());
        }
    }

    pub fn lea(&mut self, to: Gpr, from: Mem) {
        self.general(true, &[0x8D], to, Rm::Mem(from), &[]);
    }

    pub fn add(&mut self, to: Gpr, from: Rm) {
        self.general(true, &[0x03], to, from, &[]);
    }

    pub fn add_constant(&mut self, to: Rm, value: i32) {
        match i8::try_from(value) {
            Ok(value) => self.general(true, &[0x83], 0, to, &[value as u8]),
            Err(_) => self.general(true, &[0x81], 0, to, &value.to_le_bytes()),
        }
    }

    pub fn sub(&mut self, to: Gpr, from: Rm) {
        self.general(true, &[0x2B], to, from, &[]);
    }

    pub fn multiply_constant(&mut self, to: Gpr, from: Rm, value: i32) {
        self.general(true, &[0x69], to, from, &value.to_le_bytes());
    }

    pub fn multiply(&mut self, to: Gpr, from: Rm) {
        self.general(true, &[0x0F, 0xAF], to, from, &[]);
    }

    pub fn compare(&mut self, a: Gpr, b: Rm) {
        self.general(true, &[0x3B], a, b, &[]);
    }

    pub fn compare_constant(&mut self, a: Rm, value: i32) {
        match i8::try_from(value) {
            Ok(value) => self.general(true, &[0x83], 7, a, &[value as u8]),
            Err(_) => self.general(true, &[0x81], 7, a, &value.to_le_bytes()),
        }
    }

    pub fn push(&mut self, r: Gpr) {
        if r >= 8 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0x50 | (r & 7));
    }

    pub fn pop(&mut self, r: Gpr) {
        if r >= 8 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0x58 | (r & 7));
    }

    // ---- jumps

    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    pub fn place(&mut self, label: Label) {
        self.labels[label.0] = Some(self.bytes.len());
    }

    pub fn jump(&mut self, to: Label) {
        self.bytes.push(0xE9);
        self.target(to);
    }

    pub fn jump_if(&mut self, condition: Condition, to: Label) {
        self.bytes.extend([0x0F, 0x80 | condition as u8]);
        self.target(to);
    }

    pub fn call(&mut self, to: Label) {
        self.bytes.push(0xE8);
        self.target(to);
    }

    fn target(&mut self, to: Label) {
        self.jumps.push((self.bytes.len(), to));
        self.bytes.extend([0; 4]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions of all kinds, with what a disassembler calls them.
    fn samples(wide: bool) -> (Vec<u8>, Vec<String>) {
        let mut a = Asm::new(wide);
        let mut texts: Vec<String> = Vec::new();
        let v = if wide { "zmm" } else { "ymm" };
        let mem = Mem { base: 13, index: Some(12), scale: 2, disp: 256 };
        let high = if wide { 30 } else { 14 };
        a.vector(code(1, 0, 0x58), 9, 7, Rm::Reg(high), None);
        texts.push(format!("vaddps {v}9,{v}7,{v}{high}"));
        a.vector(code(2, 1, 0xB8), high, 7, Rm::Mem(mem), None);
        texts.push(format!(
            "vfmadd231ps {v}{high},{v}7,{} PTR [r13+r12*4+0x100]",
            if wide { "ZMMWORD" } else { "YMMWORD" }
        ));
        a.vector(code(1, 1, 0x72), 6, high, Rm::Reg(8), Some(16));
        texts.push(format!("vpslld {v}{high},{v}8,0x10"));
        a.vector(code(2, 1, 0x33).part(Part::Half), 3, 0, Rm::Mem(Mem::at(RSP, -96)), None);
        texts.push(format!("vpmovzxwd {v}3,{} PTR [rsp-0x60]", if wide { "YMMWORD" } else { "XMMWORD" }));
        a.sized(code(1, 1, 0x6E).part(Part::Bytes(4)), Length::X, high, 0, Rm::Reg(10), None);
        texts.push(format!("vmovd xmm{high},r10d"));
        if wide {
            let masked = Masked { by: 5, zero: true };
            a.evex(code(1, 0, 0x10), Length::Z, 17, 0, Rm::Mem(Mem::at(RBP, 4)), masked, None);
            texts.push("vmovups zmm17{k5}{z},ZMMWORD PTR [rbp+0x4]".to_string());
            let from = Mem { base: 8, index: Some(25), scale: 2, disp: 12 };
            let masked = Masked { by: 1, zero: false };
            a.evex(code(2, 1, 0x92).part(Part::Bytes(4)), Length::Z, 4, 0, Rm::Mem(from), masked, None);
            texts.push("vgatherdps zmm4{k1},DWORD PTR [r8+zmm25*4+0xc]".to_string());
            a.evex(code(3, 1, 0x1F), Length::Z, 6, 20, Rm::Reg(21), Masked::default(), Some(1));
            texts.push("vpcmpltd k6,zmm20,zmm21".to_string());
            a.vex(code(1, 0, 0x41), Length::Y, 7, 3, Rm::Reg(4), None);
            texts.push("kandw k7,k3,k4".to_string());
            a.vex(code(1, 0, 0x92), Length::X, 2, 0, Rm::Reg(RDX), None);
            texts.push("kmovw k2,edx".to_string());
        } else {
            a.vex(code(3, 1, 0x4A), Length::Y, 11, 2, Rm::Reg(13), Some(12 << 4));
            texts.push("vblendvps ymm11,ymm2,ymm13,ymm12".to_string());
        }
        a.mov(15, Rm::Mem(Mem { base: RDI, index: None, scale: 0, disp: 0x400 }));
        texts.push("mov r15,QWORD PTR [rdi+0x400]".to_string());
        a.multiply_constant(RAX, Rm::Reg(9), 600);
        texts.push("imul rax,r9,0x258".to_string());
        a.constant(11, 0x1234_5678_9ABC);
        texts.push("movabs r11,0x123456789abc".to_string());
        a.constant(RCX, -2);
        texts.push("mov rcx,0xfffffffffffffffe".to_string());
        a.compare_constant(Rm::Mem(Mem::at(12, 0)), 1000);
        texts.push("cmp QWORD PTR [r12],0x3e8".to_string());
        a.vex(code(2, 0, 0xF5), Length::X, RAX, 9, Rm::Reg(RAX), None);
        texts.push("bzhi eax,eax,r9d".to_string());
        let top = a.label();
        a.place(top);
        a.jump_if(Condition::Below, top);
        texts.push("jb".to_string());
        (a.finish(), texts)
    }

    #[test]
    fn a_disassembler_reads_what_was_meant() {
        for wide in [false, true] {
            let (bytes, wanted) = samples(wide);
            let file = std::env::temp_dir().join(format!("partita-asm-{}-{wide}", std::process::id()));
            std::fs::write(&file, bytes).expect("a temporary file");
            let tool = std::process::Command::new("objdump")
                .args(["-D", "-b", "binary", "-m", "i386:x86-64", "-M", "intel", "--no-show-raw-insn"])
                .arg(&file)
                .output();
            let _ = std::fs::remove_file(&file);
            // Machines without the tool run the code only.
            let Ok(output) = tool else { return };
            let text = String::from_utf8_lossy(&output.stdout);
            let lines: Vec<String> = text
                .lines()
                .filter_map(|l| l.split_once(":\t"))
                .map(|(_, i)| i.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect();
            for (n, want) in wanted.iter().enumerate() {
                let got = lines.get(n).map_or("nothing", String::as_str);
                assert!(got.starts_with(want.as_str()), "instruction {n} is `{got}`, not `{want}`");
            }
        }
    }

    #[test]
    fn constants_are_shared_and_aligned_behind_the_code() {
        let mut a = Asm::new(true);
        assert_eq!(a.pool(&[1; 4]), 0);
        assert_eq!(a.pool(&[2; 64]), 64);
        assert_eq!(a.pool(&[1; 4]), 0);
        a.vector(code(1, 0, 0x58), 0, 0, Rm::Spread(64), None);
        let code = a.finish();
        assert_eq!(code.len(), 64 + 128);
        // The distance from the instruction's end.
        assert_eq!(i32::from_le_bytes(code[6..10].try_into().unwrap()), 128 - 10);
    }
}
