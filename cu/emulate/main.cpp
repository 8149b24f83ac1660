// main.cpp: the driver's cases on the emulator.
#include <stdio.h>
#include <string.h>

#include "../check.h"

int main(int argc, char **argv) {
  const rattn_backend *b = rattn_cuda();
  rattn_ctx *ctx;
  check::must(b, nullptr, b->open(0, 1, "", &ctx), "open");
  const int wrong = check::run_all(b, ctx, argc > 1 && !strcmp(argv[1], "--quick"));
  b->close(ctx);
  return wrong != 0;
}
