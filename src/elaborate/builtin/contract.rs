//! `dot`: products over shared dims, summed over the named ones.

use super::super::Elab;
use super::super::dims::last;
use super::super::value::Val;
use super::{Args, Site};
use crate::diag::Diagnostic;
use crate::ir::{DimId, ValueId};
use crate::types::{DType, MapOp};

impl<'a> Elab<'a> {
    pub(super) fn dot_call(&mut self, site: Site<'a>, args: Args) -> Option<Val> {
        self.own_settings(site)?;
        let dims = self.dim_list(site)?;
        self.no_named(site, &args, &[])?;
        if args.pos.len() < 2 {
            self.error(
                Diagnostic::error("E0314", "`dot` takes at least two values")
                    .at(site.span, "too few")
                    .help("write `dot[dim](x, w)`; to reduce one value, `sum[dim](x)`"),
            );
            return None;
        }
        if dims.is_empty() {
            self.error(
                Diagnostic::error("E0314", "`dot` needs the dims that it sums over")
                    .at(site.span, "none in brackets")
                    .help("write `dot[dim](x, w)`; without a sum, `outer(x, w)`"),
            );
            return None;
        }
        let mut values = Vec::new();
        for a in &args.pos {
            values.push(self.closed(a)?);
        }
        for d in &dims {
            let with: Vec<usize> = (0..values.len()).filter(|i| self.b.dims(values[*i]).contains(d)).collect();
            if with.len() < 2 {
                let name = last(&self.dim_name(*d)).to_string();
                let mut e = Diagnostic::error("E0311", format!("dim `{name}` is in {} of the operands", with.len()))
                    .at(site.head, format!("summed over `{name}`"));
                for a in &args.pos {
                    if let Val::Tensor(v) = &a.val {
                        let shown = self.show_dims(self.b.dims(*v));
                        e = e.and(a.span, format!("this has {shown}"));
                    }
                }
                self.error(
                    e.help(format!("a contracted dim is in at least two operands; otherwise write `sum[{name}](x)`")),
                );
                return None;
            }
        }
        let dtype = self.dot_type(&values, site)?;
        self.b.span = Some(site.span);
        let values: Vec<ValueId> = values.into_iter().map(|v| self.b.cast(v, dtype)).collect();
        let mut acc = values[0];
        for k in 1..values.len() {
            let contract: Vec<DimId> = dims
                .iter()
                .copied()
                .filter(|d| self.b.dims(acc).contains(d) && self.b.dims(values[k]).contains(d))
                .filter(|d| values[k + 1..].iter().all(|v| !self.b.dims(*v).contains(d)))
                .collect();
            acc = if contract.is_empty() {
                self.b.map(MapOp::Mul, &[acc, values[k]])
            } else {
                self.b.dot(&contract, acc, values[k], dtype)
            };
        }
        Some(Val::Tensor(acc))
    }

    /// Working precision, unless all operands are wider by declaration.
    fn dot_type(&mut self, values: &[ValueId], site: Site<'a>) -> Option<DType> {
        let types: Vec<DType> = values.iter().map(|v| self.b.dtype(*v)).collect();
        if types.contains(&DType::F16) && types.contains(&DType::BF16) {
            self.error(
                Diagnostic::error("E0310", "f16 and bf16 do not mix")
                    .at(site.span, "operands are f16 and bf16")
                    .help("convert one: `bf16(x)`"),
            );
            return None;
        }
        let floats: Vec<DType> = types.into_iter().filter(|t| t.is_float()).collect();
        let narrowest = floats.iter().min().copied();
        Some(match narrowest {
            None => self.single(),
            Some(t) if t > self.precision => t,
            Some(_) => self.precision,
        })
    }
}
