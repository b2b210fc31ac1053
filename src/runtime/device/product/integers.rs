//! Products of I32 (wrapping), plainly: these are rare.

use super::super::pool::Pool;
use super::super::share::Shared;
use super::Product;
use crate::types::DType;

/// # Safety
/// As for [`Product::run`].
pub unsafe fn run(p: &Product, pool: &Pool, a: *const u8, b: *const u8, c: *mut u8) -> Result<(), String> {
    if (p.dtype, p.out) != (DType::I32, DType::I32) {
        return Err(format!("no matrix product of {} giving {}", p.dtype, p.out));
    }
    let sums = p.sum_count();
    let (a, b, c) = (Shared(a.cast_mut().cast::<i32>()), Shared(b.cast_mut().cast::<i32>()), Shared(c.cast::<i32>()));
    pool.split(p.batches() * p.m.size, 1, &|begin, end| {
        for row in begin..end {
            let (batch, i) = (row / p.m.size, (row % p.m.size) as isize);
            let [ao, bo, co] = Product::offsets(p.batch, batch);
            for j in 0..p.n.size as isize {
                // SAFETY: elements of the product; the row of c belongs to this turn alone.
                unsafe {
                    let c = c.get().offset(co + i * p.m.c + j * p.n.c);
                    let mut sum = if p.accumulate { *c } else { 0i32 };
                    for s in 0..sums {
                        let [sa, sb, _] = Product::offsets(p.sums, s);
                        for l in 0..p.k.size as isize {
                            let x = *a.get().offset(ao + sa + i * p.m.a + l * p.k.a);
                            let y = *b.get().offset(bo + sb + l * p.k.b + j * p.n.b);
                            sum = sum.wrapping_add(x.wrapping_mul(y));
                        }
                    }
                    *c = sum;
                }
            }
        }
    })
}
