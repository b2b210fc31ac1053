//! Tokens to the tree of a module.

use super::lex::{Spot, Token, lex};
use super::tree::{Function, Init, Instr, Item, Module, Operand, Reg, Space, Ty, Variable};
use super::{PtxError, error};
use std::collections::HashMap;

/// Reads a module. Debug sections and `.loc` lines are passed over.
pub fn parse(text: &str) -> Result<Module, PtxError> {
    let mut parser = Parser { tokens: lex(text)?, at: 0, scopes: Vec::new(), ranges: Vec::new(), renamed: 0 };
    let mut module = Module::default();
    while let Some(token) = parser.peek() {
        parser.top(token, &mut module)?;
    }
    if module.target == 0 {
        return error(1, "there is no `.target`");
    }
    Ok(module)
}

struct Parser<'a> {
    tokens: Vec<Spot<'a>>,
    at: usize,
    /// Names of registers, and of variables that a scope has renamed, innermost last.
    scopes: Vec<HashMap<&'a str, Named>>,
    /// `%r<10>`: prefix, first register, count; for each scope.
    ranges: Vec<Vec<(&'a str, Reg, u32)>>,
    renamed: u32,
}

#[derive(Clone)]
enum Named {
    Reg(Reg),
    Variable(String),
}

const LINKAGE: [&str; 4] = [".visible", ".extern", ".weak", ".common"];

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|t| t.0)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    fn next(&mut self) -> Result<Token<'a>, PtxError> {
        let Some(token) = self.peek() else { return error(self.line(), "the text ends too early") };
        self.at += 1;
        Ok(token)
    }

    fn word(&mut self) -> Result<&'a str, PtxError> {
        let line = self.line();
        match self.next()? {
            Token::Word(w) => Ok(w),
            other => error(line, format!("a name is expected here, not {other:?}")),
        }
    }

    fn int(&mut self) -> Result<u64, PtxError> {
        let line = self.line();
        match self.next()? {
            Token::Int(n) => Ok(n),
            other => error(line, format!("a number is expected here, not {other:?}")),
        }
    }

    fn eat(&mut self, mark: u8) -> bool {
        let found = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, mark: u8) -> Result<(), PtxError> {
        let line = self.line();
        if self.eat(mark) { Ok(()) } else { error(line, format!("`{}` is expected here", mark as char)) }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.tokens.get(self.at).is_some_and(|t| t.1 == line) {
            self.at += 1;
        }
    }

    fn top(&mut self, token: Token<'a>, module: &mut Module) -> Result<(), PtxError> {
        let line = self.line();
        let Token::Word(word) = token else {
            return if self.eat(b';') { Ok(()) } else { error(line, format!("{token:?} has no place here")) };
        };
        match word {
            ".version" | ".address_size" | ".file" | ".alias" => self.skip_line(),
            ".target" => {
                self.at += 1;
                let name = self.word()?;
                let digits: String = name.chars().filter(char::is_ascii_digit).collect();
                module.target = digits.parse().or_else(|_| error(line, format!("`{name}` is no target")))?;
                self.skip_line();
            }
            ".section" => while self.next()? != Token::Mark(b'}') {},
            ".entry" | ".func" => module.functions.extend(self.function(word == ".entry")?),
            word if LINKAGE.contains(&word) => self.at += 1,
            ".global" | ".const" | ".shared" => module.variables.extend(self.variables()?),
            ".pragma" => {
                while !self.eat(b';') {
                    self.at += 1;
                }
            }
            other => return error(line, format!("`{other}` is not known to the software GPU")),
        }
        Ok(())
    }

    /// One declaration without `;`: `.global .align 4 .b8 name[16]`.
    fn variable(&mut self) -> Result<Variable, PtxError> {
        let line = self.line();
        let (mut space, mut align, mut ty) = (None, 0, None);
        while let Some(Token::Word(word)) = self.peek().filter(|t| matches!(t, Token::Word(w) if w.starts_with('.'))) {
            self.at += 1;
            match word {
                ".global" => space = space.or(Some(Space::Global)),
                ".const" => space = space.or(Some(Space::Const)),
                ".shared" => space = space.or(Some(Space::Shared)),
                ".local" => space = space.or(Some(Space::Local)),
                ".param" => space = Some(Space::Param),
                ".align" => align = self.int()? as usize,
                ".ptr" => {}
                other => match Ty::parse(&other[1..]) {
                    Some(found) => ty = Some(found),
                    None if other.starts_with(".attribute") || other == ".reg" => {}
                    None => return error(line, format!("`{other}` is no part of a declaration that is known")),
                },
            }
        }
        let (Some(space), Some(ty)) = (space, ty) else { return error(line, "a declaration without space or type") };
        let name = self.word()?.to_string();
        let mut count = Some(1);
        while self.eat(b'[') {
            if self.eat(b']') {
                count = None;
            } else {
                let n = self.int()? as usize;
                count = count.map(|c| c * n);
                self.expect(b']')?;
            }
        }
        Ok(Variable { name, space, ty, align: align.max(ty.bytes()), count, init: Vec::new() })
    }

    fn variables(&mut self) -> Result<Option<Variable>, PtxError> {
        let mut variable = self.variable()?;
        if self.eat(b'=') {
            self.init(&mut variable.init)?;
            if variable.count.is_none() {
                variable.count = Some(variable.init.len());
            }
        }
        self.expect(b';')?;
        Ok(Some(variable))
    }

    fn init(&mut self, into: &mut Vec<Init>) -> Result<(), PtxError> {
        if self.eat(b'{') {
            while !self.eat(b'}') {
                self.init(into)?;
                self.eat(b',');
            }
            return Ok(());
        }
        let line = self.line();
        let negative = self.eat(b'-');
        match self.next()? {
            Token::Int(n) => into.push(Init::Bits(if negative { n.wrapping_neg() } else { n })),
            Token::Float(bits, _) => into.push(Init::Bits(bits)),
            Token::Word("generic") => {
                self.expect(b'(')?;
                self.init(into)?;
                self.expect(b')')?;
            }
            Token::Word(name) => {
                let offset = if self.eat(b'+') { self.int()? as i64 } else { 0 };
                into.push(Init::Address(name.to_string(), offset));
            }
            other => return error(line, format!("{other:?} cannot initialise a variable")),
        }
        Ok(())
    }

    fn params(&mut self) -> Result<Vec<Variable>, PtxError> {
        let mut found = Vec::new();
        self.expect(b'(')?;
        while !self.eat(b')') {
            found.push(self.variable()?);
            self.eat(b',');
        }
        Ok(found)
    }

    fn function(&mut self, entry: bool) -> Result<Option<Function>, PtxError> {
        self.at += 1;
        let mut function = Function { entry, ..Function::default() };
        if self.peek() == Some(Token::Mark(b'(')) {
            function.returns = self.params()?;
        }
        function.name = self.word()?.to_string();
        if self.peek() == Some(Token::Mark(b'(')) {
            function.params = self.params()?;
        }
        while let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            if word == ".maxntid" || word == ".reqntid" {
                function.max_threads = 1;
                loop {
                    function.max_threads *= self.int()? as u32;
                    if !self.eat(b',') {
                        break;
                    }
                }
            } else if word == ".pragma" {
                self.next()?;
                self.eat(b';');
            } else {
                while matches!(self.peek(), Some(Token::Int(_) | Token::Mark(b','))) {
                    self.at += 1;
                }
            }
        }
        if self.eat(b';') {
            function.declared_only = true;
            return Ok(Some(function));
        }
        self.expect(b'{')?;
        self.block(&mut function)?;
        Ok(Some(function))
    }

    /// What stands between braces, the opening one already read.
    fn block(&mut self, function: &mut Function) -> Result<(), PtxError> {
        self.scopes.push(HashMap::new());
        self.ranges.push(Vec::new());
        loop {
            let line = self.line();
            match self.next()? {
                Token::Mark(b'}') => break,
                Token::Mark(b'{') => self.block(function)?,
                Token::Mark(b';') => {}
                Token::Mark(b'@') => {
                    let negated = self.eat(b'!');
                    let name = self.word()?;
                    let Some(reg) = self.reg(name) else { return error(line, format!("`{name}` is no predicate")) };
                    let opcode = self.word()?;
                    self.instr(function, line, opcode, Some((reg, negated)))?;
                }
                Token::Word(word) if word.starts_with('.') => self.directive(function, word, line)?,
                Token::Word(word) if self.eat(b':') => {
                    // A label before a list of branch targets names the list.
                    if self.peek() == Some(Token::Word(".branchtargets")) {
                        self.at += 1;
                        let mut labels = Vec::new();
                        while !self.eat(b';') {
                            labels.push(self.word()?.to_string());
                            self.eat(b',');
                        }
                        function.targets.insert(word.to_string(), labels);
                    } else {
                        function.items.push(Item::Label(word.to_string(), line));
                    }
                }
                Token::Word(word) => self.instr(function, line, word, None)?,
                other => return error(line, format!("{other:?} does not begin an instruction")),
            }
        }
        self.scopes.pop();
        self.ranges.pop();
        Ok(())
    }

    fn directive(&mut self, function: &mut Function, word: &'a str, line: u32) -> Result<(), PtxError> {
        match word {
            ".loc" | ".file" => {
                self.at -= 1;
                self.skip_line();
            }
            ".pragma" => {
                self.next()?;
                self.expect(b';')?;
            }
            ".reg" => {
                let name = self.word()?;
                let Some(ty) = Ty::parse(&name[1..]) else { return error(line, format!("`{name}` is no type")) };
                loop {
                    let name = self.word()?;
                    let first = function.regs.len() as Reg;
                    if self.eat(b'<') {
                        let count = self.int()? as u32;
                        self.expect(b'>')?;
                        function.regs.extend((0..count).map(|_| ty));
                        self.ranges.last_mut().expect("a function has a scope").push((name, first, count));
                    } else {
                        function.regs.push(ty);
                        self.scopes.last_mut().expect("a function has a scope").insert(name, Named::Reg(first));
                    }
                    if !self.eat(b',') {
                        break;
                    }
                }
                self.expect(b';')?;
            }
            ".local" | ".shared" | ".param" | ".global" | ".const" => {
                self.at -= 1;
                let at = self.at;
                let Some(mut variable) = self.variables()? else { return Ok(()) };
                if self.scopes.len() > 1 {
                    // Each call sequence declares `param0` anew.
                    let original = self.tokens[at..self.at].iter().find_map(|t| match t.0 {
                        Token::Word(w) if w == variable.name => Some(w),
                        _ => None,
                    });
                    self.renamed += 1;
                    variable.name = format!("{}@{}", variable.name, self.renamed);
                    if let Some(name) = original {
                        let named = Named::Variable(variable.name.clone());
                        self.scopes.last_mut().expect("a function has a scope").insert(name, named);
                    }
                }
                function.variables.push(variable);
            }
            other => return error(line, format!("`{other}` is not known to the software GPU")),
        }
        Ok(())
    }

    fn reg(&self, name: &str) -> Option<Reg> {
        for (scope, ranges) in self.scopes.iter().zip(&self.ranges).rev() {
            if let Some(Named::Reg(reg)) = scope.get(name) {
                return Some(*reg);
            }
            for (prefix, first, count) in ranges {
                let number = name.strip_prefix(prefix).and_then(|n| n.parse::<u32>().ok());
                if let Some(n) = number.filter(|n| n < count) {
                    return Some(first + n);
                }
            }
        }
        None
    }

    fn instr(
        &mut self,
        function: &mut Function,
        line: u32,
        opcode: &str,
        guard: Option<(Reg, bool)>,
    ) -> Result<(), PtxError> {
        let mut operands = Vec::new();
        while !self.eat(b';') {
            operands.push(self.operand()?);
            self.eat(b',');
        }
        let parts = opcode.split('.').map(str::to_string).collect();
        function.items.push(Item::Instr(Instr { line, guard, parts, operands }));
        Ok(())
    }

    fn list(&mut self, close: u8) -> Result<Vec<Operand>, PtxError> {
        let mut found = Vec::new();
        while !self.eat(close) {
            found.push(self.operand()?);
            self.eat(b',');
        }
        Ok(found)
    }

    fn operand(&mut self) -> Result<Operand, PtxError> {
        let line = self.line();
        let first = match self.next()? {
            Token::Mark(b'{') => Operand::Vector(self.list(b'}')?),
            Token::Mark(b'(') => Operand::List(self.list(b')')?),
            Token::Mark(b'[') => self.memory()?,
            Token::Mark(b'!') => {
                let name = self.word()?;
                match self.reg(name) {
                    Some(reg) => Operand::Not(reg),
                    None => return error(line, format!("`{name}` is no predicate")),
                }
            }
            Token::Mark(b'-') => match self.next()? {
                Token::Int(n) => Operand::Imm { bits: n.wrapping_neg(), single: false },
                Token::Float(bits, single) => {
                    Operand::Imm { bits: bits ^ (1u64 << if single { 31 } else { 63 }), single }
                }
                other => return error(line, format!("`-` before {other:?}")),
            },
            Token::Int(n) => Operand::Imm { bits: n, single: false },
            Token::Float(bits, single) => Operand::Imm { bits, single },
            Token::Word("_") => Operand::Sink,
            Token::Word(word) => self.named(word)?,
            other => return error(line, format!("{other:?} is no operand")),
        };
        if self.eat(b'|') {
            return Ok(Operand::Pair(Box::new(first), Box::new(self.operand()?)));
        }
        Ok(first)
    }

    fn named(&mut self, word: &'a str) -> Result<Operand, PtxError> {
        if let Some(reg) = self.reg(word) {
            return Ok(Operand::Reg(reg));
        }
        if let Some(special) = word.strip_prefix('%') {
            return Ok(Operand::Special(special.to_string()));
        }
        let name = self.scopes.iter().rev().find_map(|s| match s.get(word) {
            Some(Named::Variable(name)) => Some(name.clone()),
            _ => None,
        });
        Ok(Operand::Name(name.unwrap_or_else(|| word.to_string()), self.offset()?))
    }

    /// `+16`, `-16` or nothing.
    fn offset(&mut self) -> Result<i64, PtxError> {
        if self.eat(b'+') {
            let negative = self.eat(b'-');
            let n = self.int()? as i64;
            return Ok(if negative { -n } else { n });
        }
        if self.eat(b'-') {
            return Ok(-(self.int()? as i64));
        }
        Ok(0)
    }

    fn memory(&mut self) -> Result<Operand, PtxError> {
        let line = self.line();
        let base = match self.next()? {
            Token::Word(word) => self.named(word)?,
            Token::Int(n) => Operand::Imm { bits: n, single: false },
            other => return error(line, format!("{other:?} is no address")),
        };
        let offset = self.offset()?;
        self.expect(b']')?;
        Ok(Operand::Mem { base: Box::new(base), offset })
    }
}
