//! Documents that know where they may be broken, and their layout in lines of limited width.
//!
//! A group is printed on one line if it fits, else all its own lines are broken; a fill breaks only those lines behind
//! which the next piece does not fit.

pub const WIDTH: usize = 120;
const INDENT: usize = 4;

#[derive(Debug)]
pub enum Doc<'t> {
    Text(&'t str),
    /// A line end in a broken group, else this text.
    Line(&'static str),
    /// Always a line end.
    Hard,
    /// A comment behind code, at this column if the code leaves room. A line end must follow.
    Comment(&'t str, usize),
    Concat(Vec<Doc<'t>>),
    Nest(Box<Doc<'t>>),
    Group(Box<Doc<'t>>, Forced),
    /// A group that is rather broken than what stands before it on its line.
    Late(Box<Doc<'t>>, Forced),
    Fill(Vec<Piece<'t>>),
    /// What stands right of `=`: on the next line, if it fits there in one piece but does not fit on this line.
    Assign(Box<Doc<'t>>, Forced),
}

/// Whether a document has line ends that no width can avoid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forced(bool);

/// A piece of a fill and what separates it from the piece before: None is a blank or a line end.
#[derive(Debug)]
pub struct Piece<'t> {
    pub before: Option<Doc<'t>>,
    pub doc: Doc<'t>,
}

impl<'t> Doc<'t> {
    pub fn group(doc: Doc<'t>) -> Doc<'t> {
        let forced = Forced(doc.is_forced());
        Doc::Group(Box::new(doc), forced)
    }

    pub fn late(doc: Doc<'t>) -> Doc<'t> {
        let forced = Forced(doc.is_forced());
        Doc::Late(Box::new(doc), forced)
    }

    pub fn assign(doc: Doc<'t>) -> Doc<'t> {
        let forced = Forced(doc.is_forced());
        Doc::Assign(Box::new(doc), forced)
    }

    pub fn nest(doc: Doc<'t>) -> Doc<'t> {
        Doc::Nest(Box::new(doc))
    }

    fn is_forced(&self) -> bool {
        match self {
            Doc::Text(_) | Doc::Line(_) => false,
            Doc::Hard | Doc::Comment(..) => true,
            Doc::Concat(docs) => docs.iter().any(Doc::is_forced),
            Doc::Nest(doc) => doc.is_forced(),
            Doc::Group(_, forced) | Doc::Late(_, forced) | Doc::Assign(_, forced) => forced.0,
            Doc::Fill(pieces) => pieces.iter().any(|p| p.before.is_some() || p.doc.is_forced()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Flat,
    Broken,
}

#[derive(Clone, Copy)]
enum Work<'d, 't> {
    Doc(&'d Doc<'t>),
    /// The pieces of a fill that are still to come; the first of them needs a separator.
    Rest(&'d [Piece<'t>]),
    Text(&'static str),
}

#[derive(Clone, Copy)]
struct Command<'d, 't> {
    indent: usize,
    mode: Mode,
    work: Work<'d, 't>,
}

struct Renderer<'d, 't> {
    out: String,
    column: usize,
    stack: Vec<Command<'d, 't>>,
}

/// The text of a document, without blanks at line ends.
pub fn render(doc: &Doc) -> String {
    let first = Command { indent: 0, mode: Mode::Broken, work: Work::Doc(doc) };
    let mut renderer = Renderer { out: String::new(), column: 0, stack: vec![first] };
    while let Some(command) = renderer.stack.pop() {
        renderer.step(command);
    }
    renderer.out
}

impl<'d, 't> Renderer<'d, 't> {
    fn step(&mut self, command: Command<'d, 't>) {
        let Command { indent, mode, work } = command;
        let doc = match work {
            Work::Doc(doc) => doc,
            Work::Rest(pieces) => return self.rest(command, pieces),
            Work::Text(text) => return self.text(text),
        };
        match doc {
            Doc::Text(text) => self.text(text),
            Doc::Line(flat) if mode == Mode::Flat => self.text(flat),
            Doc::Line(_) | Doc::Hard => self.line(indent),
            Doc::Comment(text, column) => {
                let wanted = if column + text.chars().count() <= WIDTH { *column } else { 0 };
                let blanks = wanted.saturating_sub(self.column).max(1);
                self.out.extend(std::iter::repeat_n(' ', blanks));
                self.text(text);
            }
            Doc::Concat(docs) => {
                self.stack.extend(docs.iter().rev().map(|d| Command { indent, mode, work: Work::Doc(d) }));
            }
            Doc::Nest(doc) => self.push(indent + INDENT, mode, Work::Doc(doc)),
            Doc::Group(doc, forced) | Doc::Late(doc, forced) => {
                let flat = mode == Mode::Flat || (!forced.0 && self.fits(0, doc, true));
                self.push(indent, if flat { Mode::Flat } else { Mode::Broken }, Work::Doc(doc));
            }
            Doc::Fill(pieces) => {
                let Some((first, rest)) = pieces.split_first() else { return };
                self.push(indent, mode, Work::Rest(rest));
                self.push(indent, mode, Work::Doc(&first.doc));
            }
            Doc::Assign(doc, forced) => {
                let here = mode == Mode::Flat || self.fits(1, doc, true);
                let wide = WIDTH.saturating_sub(indent + INDENT);
                if here || forced.0 || !fits_flat(doc, wide) {
                    self.push(indent, mode, Work::Doc(doc));
                    self.text(" ");
                } else {
                    self.push(indent + INDENT, Mode::Flat, Work::Doc(doc));
                    self.line(indent + INDENT);
                }
            }
        }
    }

    fn rest(&mut self, command: Command<'d, 't>, pieces: &'d [Piece<'t>]) {
        let Command { indent, mode, .. } = command;
        let Some((next, rest)) = pieces.split_first() else { return };
        let here = next.before.is_none() && (mode == Mode::Flat || self.fits(1, &next.doc, rest.is_empty()));
        self.push(indent, mode, Work::Rest(rest));
        self.push(indent, mode, Work::Doc(&next.doc));
        match &next.before {
            Some(before) => self.push(indent, mode, Work::Doc(before)),
            None if here => self.push(indent, mode, Work::Text(" ")),
            None => self.line(indent),
        }
    }

    fn push(&mut self, indent: usize, mode: Mode, work: Work<'d, 't>) {
        self.stack.push(Command { indent, mode, work });
    }

    fn text(&mut self, text: &str) {
        self.out.push_str(text);
        self.column += text.chars().count();
    }

    fn line(&mut self, indent: usize) {
        self.out.truncate(self.out.trim_end_matches(' ').len());
        self.out.push('\n');
        self.out.extend(std::iter::repeat_n(' ', indent));
        self.column = indent;
    }

    /// Whether the document fits flat on what is left of the line after some blanks, and what follows it (if asked)
    /// up to the next line end.
    fn fits(&self, blanks: usize, doc: &Doc, followed: bool) -> bool {
        let Some(mut left) = WIDTH.checked_sub(self.column + blanks) else { return false };
        match measure(&mut vec![(Mode::Flat, Work::Doc(doc))], &mut left) {
            Measured::TooWide => return false,
            Measured::LineEnd => return true,
            Measured::All => {}
        }
        if !followed {
            return true;
        }
        for command in self.stack.iter().rev() {
            match measure(&mut vec![(command.mode, command.work)], &mut left) {
                Measured::TooWide => return false,
                Measured::LineEnd => return true,
                Measured::All => {}
            }
        }
        true
    }
}

enum Measured {
    TooWide,
    /// A line end came while there was room.
    LineEnd,
    All,
}

fn fits_flat(doc: &Doc, width: usize) -> bool {
    let mut left = width;
    matches!(measure(&mut vec![(Mode::Flat, Work::Doc(doc))], &mut left), Measured::All)
}

/// Takes the width of the work up to its first line end off what is left.
fn measure<'d, 't>(stack: &mut Vec<(Mode, Work<'d, 't>)>, left: &mut usize) -> Measured {
    while let Some((mode, work)) = stack.pop() {
        let text = match work {
            Work::Text(text) => text,
            Work::Rest([]) => "",
            Work::Rest(pieces) => {
                if mode == Mode::Broken || pieces[0].before.is_some() {
                    return Measured::LineEnd;
                }
                stack.push((mode, Work::Rest(&pieces[1..])));
                stack.push((mode, Work::Doc(&pieces[0].doc)));
                " "
            }
            Work::Doc(doc) => match doc {
                Doc::Text(text) => text,
                Doc::Line(flat) if mode == Mode::Flat => flat,
                Doc::Line(_) | Doc::Hard | Doc::Comment(..) => return Measured::LineEnd,
                Doc::Concat(docs) => {
                    stack.extend(docs.iter().rev().map(|d| (mode, Work::Doc(d))));
                    ""
                }
                Doc::Nest(doc) => {
                    stack.push((mode, Work::Doc(doc)));
                    ""
                }
                Doc::Group(doc, forced) => {
                    stack.push((if forced.0 { Mode::Broken } else { Mode::Flat }, Work::Doc(doc)));
                    ""
                }
                Doc::Late(doc, forced) => {
                    stack.push((if forced.0 { Mode::Broken } else { mode }, Work::Doc(doc)));
                    ""
                }
                Doc::Fill(pieces) => {
                    if let Some((first, rest)) = pieces.split_first() {
                        stack.push((mode, Work::Rest(rest)));
                        stack.push((mode, Work::Doc(&first.doc)));
                    }
                    ""
                }
                Doc::Assign(..) if mode == Mode::Broken => return Measured::LineEnd,
                Doc::Assign(doc, forced) => {
                    stack.push((if forced.0 { Mode::Broken } else { mode }, Work::Doc(doc)));
                    " "
                }
            },
        };
        match left.checked_sub(text.chars().count()) {
            Some(rest) => *left = rest,
            None => return Measured::TooWide,
        }
    }
    Measured::All
}
