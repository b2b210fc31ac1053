// Flash attention (Dao et al., 2022), forward, causal, bf16 on tensor cores: 64 queries a block, 16 a warp, head of 64.
typedef unsigned int u32;
typedef unsigned short u16;
__device__ __forceinline__ u32 sptr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void cp16(void* d, const void* s) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(sptr(d)), "l"(s));
}
__device__ __forceinline__ u32 pack(float lo, float hi) {
  u32 r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void ldm(u32* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(sptr(p)));
}
__device__ __forceinline__ void ldmt(u32* r, const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(sptr(p)));
}

// Q, K, V, O: [heads][tokens][64]; tokens a multiple of 64.
extern "C" __global__ void __launch_bounds__(128) flash(const u16* Q, const u16* K, const u16* V, float* O, int tokens) {
  extern __shared__ __align__(128) u16 smem[];
  u16(*Qs)[72] = (u16(*)[72])smem;
  u16(*Ks)[72] = Qs + 64;
  u16(*Vs)[72] = Ks + 64;
  int t = threadIdx.x, w = t / 32, l = t % 32, g = l / 4, q = l % 4;
  size_t head = (size_t)blockIdx.y * tokens * 64;
  int q0 = blockIdx.x * 64;
  for (int i = t; i < 512; i += 128) cp16(&Qs[i / 8][i % 8 * 8], Q + head + (size_t)(q0 + i / 8) * 64 + i % 8 * 8);
  float o[8][4] = {}, m[2] = {-1e30f, -1e30f}, sum[2] = {0, 0};
  for (int k0 = 0; k0 <= q0; k0 += 64) {
    __syncthreads();
    for (int i = t; i < 512; i += 128) {
      cp16(&Ks[i / 8][i % 8 * 8], K + head + (size_t)(k0 + i / 8) * 64 + i % 8 * 8);
      cp16(&Vs[i / 8][i % 8 * 8], V + head + (size_t)(k0 + i / 8) * 64 + i % 8 * 8);
    }
    asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;\n");
    __syncthreads();
    float s[8][4] = {};
    for (int d = 0; d < 64; d += 16) {
      u32 a[4], b[4];
      ldm(a, &Qs[w * 16 + l % 16][d + l / 16 * 8]);
      for (int j = 0; j < 4; j++) {
        ldm(b, &Ks[j * 16 + l / 16 * 8 + l % 8][d + l / 8 % 2 * 8]);
        mma(s[2 * j], a, b[0], b[1]);
        mma(s[2 * j + 1], a, b[2], b[3]);
      }
    }
    for (int h = 0; h < 2; h++) {
      int row = q0 + w * 16 + g + 8 * h;
      float top = m[h];
      for (int j = 0; j < 8; j++)
        for (int e = 0; e < 2; e++) {
          int col = k0 + j * 8 + q * 2 + e;
          float v = s[j][2 * h + e] * 0.125f;
          s[j][2 * h + e] = col <= row ? v : -1e30f;
          top = fmaxf(top, s[j][2 * h + e]);
        }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      float scale = __expf(m[h] - top), part = 0;
      m[h] = top;
      for (int j = 0; j < 8; j++)
        for (int e = 0; e < 2; e++) {
          float p = __expf(s[j][2 * h + e] - top);
          s[j][2 * h + e] = p;
          part += p;
          o[j][2 * h + e] *= scale;
        }
      sum[h] = sum[h] * scale + part;
    }
    for (int k = 0; k < 4; k++) {
      u32 a[4] = {pack(s[2 * k][0], s[2 * k][1]), pack(s[2 * k][2], s[2 * k][3]), pack(s[2 * k + 1][0], s[2 * k + 1][1]),
                  pack(s[2 * k + 1][2], s[2 * k + 1][3])};
      u32 b[4];
      for (int j = 0; j < 4; j++) {
        ldmt(b, &Vs[k * 16 + l % 16][j * 16 + l / 16 * 8]);
        mma(o[2 * j], a, b[0], b[1]);
        mma(o[2 * j + 1], a, b[2], b[3]);
      }
    }
  }
  for (int h = 0; h < 2; h++) {
    float all = sum[h] + __shfl_xor_sync(0xffffffffu, sum[h], 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    for (int j = 0; j < 8; j++) {
      float2 v = make_float2(o[j][2 * h] / all, o[j][2 * h + 1] / all);
      *(float2*)(O + head + (size_t)(q0 + w * 16 + g + 8 * h) * 64 + j * 8 + q * 2) = v;
    }
  }
}
