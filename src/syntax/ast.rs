//! The syntax tree: what a file says, with the place of every word. Names are text here; `resolve` and `elaborate`
//! give them meaning. Comments are not in the tree (the formatter takes them from the text).

use crate::source::Span;

/// A word with its place.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    pub text: String,
    pub span: Span,
}

/// One file.
#[derive(Clone, Debug, Default)]
pub struct File {
    pub items: Vec<Item>,
    pub lost: Lost,
}

/// Names that a file would define, were it not for a syntax error: their uses are no further mistakes.
#[derive(Clone, Debug, Default)]
pub enum Lost {
    #[default]
    Nothing,
    Names(Vec<String>),
    /// The file was not parsed at all.
    All,
}

impl Lost {
    pub fn holds(&self, name: &str) -> bool {
        match self {
            Lost::Nothing => false,
            Lost::Names(names) => names.iter().any(|n| n == name),
            Lost::All => true,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Item {
    pub kind: ItemKind,
    /// Text of the `///` lines before it, without the slashes.
    pub doc: Option<String>,
    /// `@kernel(flash_attention)`: the attribute's name and argument.
    pub attribute: Option<(Name, Name)>,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum ItemKind {
    Use(Use),
    Dims(Vec<DimDef>),
    Consts(Vec<ConstDef>),
    Def(Def),
    Model(Model),
    Preset(Preset),
    Plan(Plan),
    Train(Train),
    Sample(Sample),
    Weights(Weights),
}

/// `use nn.{Linear as Lin}`, `use .parts.attention.{Block}`, `use nn`.
#[derive(Clone, Debug)]
pub struct Use {
    /// A leading point: relative to the file's folder.
    pub local: bool,
    pub path: Vec<Name>,
    /// None: the module itself is imported under its last name.
    pub names: Option<Vec<UseName>>,
}

#[derive(Clone, Debug)]
pub struct UseName {
    pub name: Name,
    pub alias: Option<Name>,
}

/// `batch = 16`, `heads = (kv, group)`.
#[derive(Clone, Debug)]
pub struct DimDef {
    pub name: Name,
    pub value: DimValue,
}

#[derive(Clone, Debug)]
pub enum DimValue {
    Size(Expr),
    Group(Vec<Name>),
}

#[derive(Clone, Debug)]
pub struct ConstDef {
    pub name: Name,
    pub ty: Option<Type>,
    pub value: Expr,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefKind {
    Fn,
    Layer,
    Optimizer,
}

/// A function, layer or optimizer.
#[derive(Clone, Debug)]
pub struct Def {
    pub kind: DefKind,
    pub name: Name,
    pub statics: Vec<Static>,
    pub args: Vec<Arg>,
    /// One type, or several for a tuple.
    pub result: Vec<Type>,
    /// Whether the result was written in parentheses.
    pub tuple: bool,
    pub body: Block,
    /// From the keyword to the end of the result type.
    pub head: Span,
}

/// `d`, `reach: float = inf`, `eps = 1e-5`.
#[derive(Clone, Debug)]
pub struct Static {
    pub name: Name,
    pub kind: StaticKind,
    pub default: Option<Expr>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StaticKind {
    /// A bare name: a dim or group.
    Dim,
    Int,
    Float,
    Bool,
    Str,
    /// `name = constant`: the kind of its default.
    OfDefault,
}

#[derive(Clone, Debug)]
pub struct Arg {
    pub name: Name,
    pub ty: Type,
    pub default: Option<Expr>,
}

/// `f32`, `int[batch, seq]`, `[.., embed -> heads, head_dim]`, `[experts, (embed -> mlp)]`.
#[derive(Clone, Debug)]
pub struct Type {
    /// None: the working precision.
    pub dtype: Option<(TypeName, Span)>,
    /// None for a bare `f32`, which is `f32[]`.
    pub dims: Option<Vec<TypeDim>>,
    /// After `->`: the output dims of a linear map whose inputs are `dims`.
    pub outs: Option<Vec<Name>>,
    pub span: Span,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TypeName {
    Bool,
    Int,
    /// `float`: only as the kind of a setting.
    Float,
    F16,
    BF16,
    F32,
    F64,
}

#[derive(Clone, Debug)]
pub enum TypeDim {
    /// `..`
    Rest(Span),
    Dim(Name),
    /// `(embed -> mlp)`
    Map(Vec<Name>, Vec<Name>),
}

#[derive(Clone, Debug)]
pub struct Model {
    pub name: Name,
    pub args: Vec<Arg>,
    pub body: Block,
    pub head: Span,
}

#[derive(Clone, Debug)]
pub struct Preset {
    pub name: Name,
    pub settings: Vec<(Name, Expr)>,
}

#[derive(Clone, Debug)]
pub struct Block {
    pub stmts: Vec<Stmt>,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub struct Stmt {
    pub kind: StmtKind,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum StmtKind {
    /// `let a, b = e` (several instances) or `let (a, b) = e` (a tuple taken apart).
    Let {
        names: Vec<Name>,
        tuple: bool,
        ty: Option<Type>,
        value: Expr,
    },
    /// `h = e`
    Rebind {
        name: Name,
        value: Expr,
    },
    Dims(Vec<DimDef>),
    Param {
        names: Vec<Name>,
        ty: Type,
        init: Expr,
    },
    State {
        names: Vec<Name>,
        ty: Type,
        init: Expr,
    },
    Update {
        name: Name,
        value: Expr,
    },
    Loss {
        name: Option<Name>,
        value: Expr,
    },
    Metric {
        name: Name,
        value: Expr,
    },
    Output {
        name: Name,
        value: Expr,
    },
    Expr(Expr),
    /// In a sample's block: `feed tokens[seq] = e`.
    Feed {
        input: Name,
        dim: Name,
        value: Expr,
    },
    /// In a sample's block: `text bytes`, `stop "s"`, `length 100`.
    Setting {
        word: Name,
        value: Expr,
    },
}

#[derive(Clone, Debug)]
pub struct Expr {
    pub kind: Box<ExprKind>,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum ExprKind {
    /// As written, without underscores: `16`, `600000`.
    Int(String),
    /// As written, without underscores: `0.5`, `1e-3`.
    Float(String),
    /// Escapes are resolved.
    Str(String),
    Bool(bool),
    Name(String),
    /// A dtype word as a value, called as a cast: `f32(x)`, `int(x)`.
    Type(TypeName),
    /// `(a, b)`; one element without trailing comma is a plain parenthesis and appears as `Paren`.
    Tuple(Vec<Expr>),
    Paren(Expr),
    /// `[0.485, 0.456]`
    Array(Vec<Expr>),
    If {
        cond: Expr,
        then: Block,
        other: Option<Else>,
    },
    For {
        kind: LoopKind,
        var: Name,
        reverse: bool,
        over: LoopRange,
        body: Block,
    },
    Unary {
        op: UnaryOp,
        value: Expr,
    },
    Binary {
        op: BinaryOp,
        op_span: Span,
        left: Expr,
        right: Expr,
    },
    Call {
        callee: Expr,
        args: Vec<CallArg>,
    },
    /// `f[..]`, `Layer[..]`, `value[..]`: one form, told apart by what the name means.
    Index {
        base: Expr,
        items: Vec<IndexItem>,
    },
    Member {
        base: Expr,
        name: Name,
    },
    /// `block.{i}`: in weights items.
    Turn {
        base: Expr,
        name: Name,
    },
    /// `x @ [seq: tp]`
    Layout {
        base: Expr,
        entries: Vec<LayoutEntry>,
    },
}

#[derive(Clone, Debug)]
pub enum Else {
    Block(Block),
    If(Expr),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopKind {
    For,
    Scan,
}

#[derive(Clone, Debug)]
pub enum LoopRange {
    Dim(Name),
    Range(Expr, Expr),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryOp {
    Neg,
    Not,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BinaryOp {
    Or,
    And,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Pow,
}

#[derive(Clone, Debug)]
pub struct CallArg {
    pub name: Option<Name>,
    pub value: Expr,
}

#[derive(Clone, Debug)]
pub struct IndexItem {
    pub kind: IndexKind,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum IndexKind {
    /// `..`
    Rest,
    /// `embed`, `(heads, head_dim)`, `seq -> key`, `(e = i, s) -> a`.
    Group { from: Group, to: Option<Group> },
    /// `a = i`; with `slice` also `a = lo..` ; with `to` also `a = lo.. -> b`. A setting of a generic looks alike.
    Equals { name: Name, value: Expr, slice: bool, to: Option<Name> },
    /// Anything else that stands in brackets, such as the constant of a positional misuse; always an error later, but
    /// with a better message than a syntax error.
    Other(Expr),
}

/// A dim or a list of dims; `(e = i, s = j)` carries the index values of segment reductions and `pack`.
#[derive(Clone, Debug)]
pub struct Group {
    pub parts: Vec<GroupPart>,
    /// Whether it was written in parentheses.
    pub paren: bool,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub struct GroupPart {
    pub name: Name,
    pub value: Option<Expr>,
}

/// `seq: tp`, `seq: (cp, tp)`
#[derive(Clone, Debug)]
pub struct LayoutEntry {
    pub dim: Name,
    pub axes: Vec<Name>,
}

// ---- train

#[derive(Clone, Debug)]
pub struct Train {
    /// None: named after the model.
    pub name: Option<Name>,
    pub model: Name,
    pub lines: Vec<TrainLine>,
    pub head: Span,
}

#[derive(Clone, Debug)]
pub struct TrainLine {
    pub kind: TrainKind,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum TrainKind {
    Data {
        valid: bool,
        source: DataSource,
        every: Option<Expr>,
        batches: Option<Expr>,
    },
    Samples {
        dim: Name,
        slices: Option<Expr>,
    },
    Let {
        name: Name,
        value: Expr,
    },
    Optimizer {
        call: Expr,
        on: Option<Select>,
        minimizes: Vec<Name>,
    },
    Freeze(Select),
    Clip(Expr),
    Gradient(Expr),
    Average(Expr),
    Steps(Expr),
    Seed(Expr),
    Save {
        every: Expr,
        keep: Option<Keep>,
    },
    /// The checkpoint with the lowest validation loss.
    SaveBest,
    Log(Expr),
    Load {
        path: (String, Span),
        with: Option<Name>,
        on: Option<Select>,
    },
}

/// Which checkpoints stay.
#[derive(Clone, Debug)]
pub enum Keep {
    All,
    Newest(Expr),
}

#[derive(Clone, Debug)]
pub enum DataSource {
    /// `bytes("corpus.txt")`
    Stream(Expr),
    /// `{ image = npy("x.npy") / 255 }`
    Fields(Vec<(Name, Expr)>),
}

#[derive(Clone, Debug)]
pub struct Select {
    pub terms: Vec<SelectTerm>,
    pub except: Vec<SelectTerm>,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub struct SelectTerm {
    pub kind: SelectKind,
    pub span: Span,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SelectKind {
    Matrix,
    Vector,
    Rest,
    Glob(String),
}

// ---- sample

#[derive(Clone, Debug)]
pub struct Sample {
    pub name: Option<Name>,
    pub model: Name,
    /// None: no parentheses were written.
    pub args: Option<Vec<Arg>>,
    /// `feed` and settings stand among the statements (`StmtKind::Feed`, `StmtKind::Setting`).
    pub body: Block,
    pub head: Span,
}

// ---- weights

#[derive(Clone, Debug)]
pub struct Weights {
    pub name: Name,
    /// A model or a layer.
    pub of: Name,
    pub body: WeightsBlock,
    pub head: Span,
}

#[derive(Clone, Debug)]
pub struct WeightsBlock {
    pub lines: Vec<WeightsLine>,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub struct WeightsLine {
    pub kind: WeightsKind,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum WeightsKind {
    /// `"h.{i}.w": [embed, (heads, head_dim)] = block.{i}.wq`
    Entry {
        file_name: (String, Span),
        axes: Vec<Group>,
        value: Expr,
    },
    /// `"prefix." = instance`
    Prefix {
        prefix: (String, Span),
        instance: Expr,
    },
    Dims(Vec<DimDef>),
    For {
        var: Name,
        over: LoopRange,
        body: WeightsBlock,
    },
    If {
        cond: Expr,
        then: WeightsBlock,
        other: Option<WeightsBlock>,
    },
}

// ---- plan

#[derive(Clone, Debug)]
pub struct Plan {
    pub name: Name,
    pub lines: Vec<PlanLine>,
    pub head: Span,
}

#[derive(Clone, Debug)]
pub struct PlanLine {
    pub kind: PlanKind,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum PlanKind {
    Mesh(Vec<MeshAxis>),
    Shard {
        dims: Vec<Group>,
        axes: Vec<Name>,
        scopes: Vec<Scope>,
        opts: Vec<PlanOpt>,
    },
    Replicate {
        dims: Vec<Group>,
        scopes: Vec<Scope>,
    },
    Layout {
        scope: Scope,
        entries: Vec<LayoutEntry>,
    },
    Pipeline {
        dims: Vec<Name>,
        axis: Name,
        opts: Vec<PlanOpt>,
    },
    Microbatches((u64, Span)),
    Precision {
        name: Name,
        opts: Vec<PlanOpt>,
    },
    Zero {
        level: (u64, Span),
        axes: Vec<Name>,
        scopes: Vec<Scope>,
        opts: Vec<PlanOpt>,
    },
    Recompute {
        values: Vec<PlanValue>,
        opts: Vec<PlanOpt>,
    },
    Offload {
        what: Vec<Name>,
        to: Name,
    },
    /// `async(staleness = 2) by dp`, `local(steps = 100) by dp { lr = 0.7 }`
    Statement {
        value: PlanValue,
        axis: Option<Name>,
        opts: Vec<PlanOpt>,
    },
}

#[derive(Clone, Debug)]
pub struct MeshAxis {
    pub name: Name,
    pub size: (u64, Span),
    /// After `@`.
    pub link: Option<Name>,
}

/// `Layer`, `fn`, `Layer.name`, `Layer[dims]`.
#[derive(Clone, Debug)]
pub struct Scope {
    pub path: Vec<Name>,
    pub dims: Vec<Name>,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub struct PlanOpt {
    pub name: Name,
    pub value: PlanValue,
}

#[derive(Clone, Debug)]
pub struct PlanValue {
    pub kind: PlanValueKind,
    pub span: Span,
}

#[derive(Clone, Debug)]
pub enum PlanValueKind {
    Number {
        text: String,
        unit: Option<Name>,
    },
    Str(String),
    /// `1f1b`, `Mla.q`
    Word(Vec<Name>),
    /// `interleaved(2)`, `auto(memory = 70 GiB)`
    Call {
        name: Name,
        args: Vec<(Option<Name>, PlanValue)>,
    },
    List(Vec<PlanValue>),
}
