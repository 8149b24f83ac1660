// cpu_stream.inc.h: memory that is prefetched beside the steps of products.
#ifndef RATTN_CPU_STREAM_INC_H
#define RATTN_CPU_STREAM_INC_H

#include "cpu_rows.inc.h"

enum { LINE = 64 };  // bytes that a prefetch brings

typedef struct {
  const char *at;
  int64_t lines, left;  // lines a step, and in all
} rattn_stream;

// The first three are forms of the next key tile, the last what the next product adds to.
enum { SUMS = 3, STREAMS };

INLINE int64_t take_lines(rattn_stream *s) {
  const int64_t n = s->lines < s->left ? s->lines : s->left;
  s->at += n * LINE;
  s->left -= n;
  return n;
}

INLINE void prefetch_step(rattn_stream streams[STREAMS]) {
  UNROLL for (int i = 0; i < SUMS; i++) {
    const char *at = streams[i].at;
    for (int64_t n = take_lines(&streams[i]); n > 0; n--, at += LINE) __builtin_prefetch(at, 0, 2);
  }
  const char *at = streams[SUMS].at;
  for (int64_t n = take_lines(&streams[SUMS]); n > 0; n--, at += LINE) __builtin_prefetch(at, 1);
}

#endif
