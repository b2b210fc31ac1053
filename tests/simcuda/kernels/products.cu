// Tiled products: f32 through shared memory, bf16 on tensor cores with ldmatrix and a pipeline of cp.async.
extern "C" __global__ void __launch_bounds__(256) tiled(const float* A, const float* B, float* C, int M, int N, int K) {
  __shared__ float As[16][65], Bs[16][64];
  int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  int bm = blockIdx.y * 64, bn = blockIdx.x * 64;
  float acc[4][4] = {};
  for (int k0 = 0; k0 < K; k0 += 16) {
    for (int i = threadIdx.x; i < 1024; i += 256) {
      int m = i / 16, k = i % 16;
      As[k][m] = bm + m < M && k0 + k < K ? A[(size_t)(bm + m) * K + k0 + k] : 0.f;
      int kk = i / 64, n = i % 64;
      Bs[kk][n] = bn + n < N && k0 + kk < K ? B[(size_t)(k0 + kk) * N + bn + n] : 0.f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 16; k++)
#pragma unroll
      for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) acc[i][j] += As[k][ty * 4 + i] * Bs[k][tx * 4 + j];
    __syncthreads();
  }
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 4; j++)
      if (bm + ty * 4 + i < M && bn + tx * 4 + j < N) C[(size_t)(bm + ty * 4 + i) * N + bn + tx * 4 + j] = acc[i][j];
}

typedef unsigned int u32;
typedef unsigned short u16;
__device__ __forceinline__ u32 sptr(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void cp16(void* d, const void* s) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(sptr(d)), "l"(s));
}

// C[M][N] = A[M][K] B[K][N], all multiples of 64, 64 and 32; bf16 in, f32 out. 4 warps, each 32 x 32.
extern "C" __global__ void __launch_bounds__(128) mma_bf16(const u16* A, const u16* B, float* C, int M, int N, int K) {
  __shared__ __align__(128) u16 As[2][64][40];
  __shared__ __align__(128) u16 Bs[2][32][72];
  int t = threadIdx.x, w = t / 32, l = t % 32;
  int bm = blockIdx.y * 64, bn = blockIdx.x * 64, wm = (w / 2) * 32, wn = (w % 2) * 32;
  float acc[2][4][4] = {};
  auto load = [&](int s, int k0) {
    for (int i = t; i < 64 * 4; i += 128) cp16(&As[s][i / 4][(i % 4) * 8], A + (size_t)(bm + i / 4) * K + k0 + (i % 4) * 8);
    for (int i = t; i < 32 * 8; i += 128) cp16(&Bs[s][i / 8][(i % 8) * 8], B + (size_t)(k0 + i / 8) * N + bn + (i % 8) * 8);
    asm volatile("cp.async.commit_group;\n");
  };
  load(0, 0);
  for (int k0 = 0, s = 0; k0 < K; k0 += 32, s ^= 1) {
    if (k0 + 32 < K) {
      load(s ^ 1, k0 + 32);
#ifndef DROP_WAIT
      asm volatile("cp.async.wait_group 1;\n");
#endif
    } else {
#ifndef DROP_WAIT
      asm volatile("cp.async.wait_group 0;\n");
#endif
    }
    __syncthreads();
    for (int kk = 0; kk < 32; kk += 16) {
      u32 a[2][4], b[2][4];
      for (int i = 0; i < 2; i++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(a[i][0]), "=r"(a[i][1]), "=r"(a[i][2]), "=r"(a[i][3])
                     : "r"(sptr(&As[s][wm + i * 16 + l % 16][kk + (l / 16) * 8])));
      for (int j = 0; j < 2; j++)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j][2]), "=r"(b[j][3])
                     : "r"(sptr(&Bs[s][kk + l % 16][wn + j * 16 + (l / 16) * 8])));
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
          asm volatile(
              "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
              : "+f"(acc[i][j][0]), "+f"(acc[i][j][1]), "+f"(acc[i][j][2]), "+f"(acc[i][j][3])
              : "r"(a[i][0]), "r"(a[i][1]), "r"(a[i][2]), "r"(a[i][3]), "r"(b[j / 2][(j % 2) * 2]), "r"(b[j / 2][(j % 2) * 2 + 1]));
    }
#ifndef DROP_BARRIER
    __syncthreads();
#endif
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int h = 0; h < 2; h++) {
        int m = bm + wm + i * 16 + l / 4 + h * 8, n = bn + wn + j * 8 + (l % 4) * 2;
        *(float2*)(C + (size_t)m * N + n) = make_float2(acc[i][j][2 * h], acc[i][j][2 * h + 1]);
      }
}
