# A clone, or a tarball of make dist, is built where it lies:
#
#   spack repo add packaging/spack/spack_repo/ringattn
#   spack dev-build ringattn@develop                                 # with MPI
#   spack dev-build ringattn@develop +cuda cuda_arch=90 ^openmpi+cuda

from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Ringattn(MakefilePackage, CudaPackage):
    """Exact attention, forward and backward, of a sequence that is sharded over the
    ranks of an MPI job (ring attention, context parallelism), on CPUs and GPUs."""

    license("Apache-2.0")

    version("develop")

    variant("mpi", default=True, description="Ranks of an MPI job; without it, of one process")

    depends_on("c", type="build")
    depends_on("go@1.26:", type="build")
    depends_on("mpi", when="+mpi")
    with when("+cuda"):
        depends_on("cxx", type="build")
        depends_on("cuda@12.4:", type="build")
        conflicts("cuda_arch=none", msg="give the GPUs to build for, as in cuda_arch=90")

    def setup_build_environment(self, env):
        # Nothing is fetched: modules come from vendor/ of a tarball of make dist, or from
        # the cache of whoever builds a clone.
        env.set("GOTOOLCHAIN", "local")

    @property
    def common(self):
        """What make is told."""
        spec = self.spec
        args = ["PREFIX=" + self.prefix, "MPICC=" + (spec["mpi"].mpicc if spec.satisfies("+mpi") else "")]
        if not spec.satisfies("+cuda"):
            return args + ["CUDA=no"]
        # wgmma and TMA of sm_90 are in its own architecture, 90a.
        archs = ["90a" if a == "90" else a for a in spec.variants["cuda_arch"].value]
        nvcc = join_path(spec["cuda"].prefix.bin, "nvcc")
        return args + ["CUDA=yes", "NVCC=" + nvcc, "ARCHS=" + " ".join(archs)]

    @property
    def build_targets(self):
        return self.common + ["all"]

    @property
    def install_targets(self):
        return self.common + ["install"]

    def check(self):
        make("unit")
