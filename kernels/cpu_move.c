// cpu_move.c: tasks that copy, round or clear. They are bound by memory, whatever the
// instruction set.
#include "cpu.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void rattn_zero_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  const int64_t piece = RATTN_ADD_FLOATS * (int64_t)sizeof(float), at = task * piece;
  memset((char *)job->op.zero.p + at, 0, (size_t)least(piece, job->op.zero.bytes - at));
}

// To nearest, ties to even; a NaN keeps its sign and what is left of its payload, and is quiet.
static uint16_t to_bf16(float x) {
  uint32_t b;
  memcpy(&b, &x, sizeof b);
  if ((b & 0x7fffffff) > 0x7f800000) return (uint16_t)(b >> 16 | 0x40);
  return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h) {
  const uint32_t b = (uint32_t)h << 16;
  float x;
  memcpy(&x, &b, sizeof x);
  return x;
}

// Task of a round call: RATTN_ADD_FLOATS elements.
void rattn_round_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  uint16_t *restrict dst = job->op.round.dst;
  const float *restrict src = job->op.round.src;
  int64_t i = task * RATTN_ADD_FLOATS;
  const int64_t end = least(i + RATTN_ADD_FLOATS, job->op.round.n);
  for (; i < end; i++) dst[i] = to_bf16(src[i]);
}

// Task of an add_rounded call: RATTN_ADD_FLOATS elements.
void rattn_add_rounded_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  float *restrict dst = job->op.add_rounded.dst;
  const uint16_t *restrict src = job->op.add_rounded.src;
  int64_t i = task * RATTN_ADD_FLOATS;
  const int64_t end = least(i + RATTN_ADD_FLOATS, job->op.add_rounded.n);
  for (; i < end; i++) dst[i] += from_bf16(src[i]);
}

// Rows of a task of a move.
static int64_t move_rows(const rattn_move_args *a) {
  const int64_t bytes = RATTN_ADD_FLOATS * (int64_t)sizeof(float);
  return a->bytes < bytes ? bytes / (a->bytes > 0 ? a->bytes : 1) : 1;
}

int64_t rattn_move_tasks(const rattn_move_args *a) { return (a->n + move_rows(a) - 1) / move_rows(a); }

void rattn_move_task(const rattn_job *job, float *workspace, int64_t task) {
  (void)workspace;
  const rattn_move_args *a = &job->op.move;
  int64_t i = task * move_rows(a);
  const int64_t end = least(i + move_rows(a), a->n);
  for (; i < end; i++) {
    char *dst = (char *)a->dst + (a->to ? a->to[i] : i) * a->dst_stride;
    const char *src = (const char *)a->src + (a->from ? a->from[i] : i) * a->src_stride;
    if (!a->add) {
      memcpy(dst, src, (size_t)a->bytes);
      continue;
    }
    for (int64_t k = 0; k < a->bytes / 4; k++)
      ((float *)(void *)dst)[k] += ((const float *)(const void *)src)[k];
  }
}
