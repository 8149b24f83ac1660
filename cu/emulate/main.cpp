// main.cpp: the driver's cases on the emulator.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "../context.h"

int main(int argc, char **argv) {
  const rattn_backend *b = rattn_cuda();
  rattn_ctx *ctx;
  check::must(b, nullptr, b->open(0, 1, "", &ctx), "open");
  if (argc > 3) ctx->kept_bytes = atoll(argv[3]);
  const bool quick = argc > 1 && !strcmp(argv[1], "--quick");
  const int wrong = check::run_all(b, ctx, quick, argc > 2 ? atoi(argv[2]) : 0);  // one head_dim
  b->close(ctx);
  return wrong != 0;
}
