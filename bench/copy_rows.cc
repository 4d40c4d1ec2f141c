// SPDX-License-Identifier: Apache-2.0
// Each copy kernel that this processor runs, against libc memcpy, without a node around them. All copy the
// same blocks of shared memory, larger than the last-level cache, in the same random order to the same
// destination, by segments as records are read; they take turns within a round, so that what else the machine
// does hits all alike.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/fence.h"
#include "base/format.h"
#include "base/units.h"
#include "measure.h"
#include "record/seal.h"
#include "record/verified_copy.h"

namespace cistern {
namespace {

constexpr std::size_t kFreshBytes = 512u << 20;
constexpr std::size_t kTurnBytes = 64u << 20;
constexpr std::size_t kGap = 4096;  // between blocks, where records have their trailers

// Blocks as an arena has them: shared memory in small pages.
class SharedBytes final {
 public:
  static Result<SharedBytes> Make(std::size_t bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return Error(Code::kBusy, Text("there is no room for ", SizeText(bytes)));
    SharedBytes made(static_cast<std::byte*>(at), bytes);
    Random random(3);
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
      const std::uint64_t word = random.Next();
      std::memcpy(made.data() + i, &word, 8);
    }
    return made;
  }
  SharedBytes(SharedBytes&& other) noexcept
      : bytes_(std::exchange(other.bytes_, nullptr)), size_(other.size_) {}
  SharedBytes& operator=(SharedBytes&&) = delete;
  ~SharedBytes() {
    if (bytes_ != nullptr) munmap(bytes_, size_);
  }
  std::byte* data() const { return bytes_; }

 private:
  SharedBytes(std::byte* bytes, std::size_t size) : bytes_(bytes), size_(size) {}
  std::byte* bytes_;
  std::size_t size_;
};

struct Variant {
  std::string suffix;
  bool reused = false;  // one destination block over and over
  bool cached = false;  // through the caches, as a put is copied to staging
};

// A copy that checks nothing, by streaming stores: what of a ratio is this processor's.
void StreamUnsummed(std::byte* to, const std::byte* from, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += 16) StreamingStore(to + at, from + at);
  StreamingStoreFence();
}

class CopyBench {
 public:
  CopyBench(BenchOptions& options, const std::byte* from, std::size_t block_bytes)
      : options_(options), from_(from), block_bytes_(block_bytes), to_(kFreshBytes) {
    for (const record::CopyKernels* kernels : record::AllKernels()) {
      if (options.copy.empty() || options.copy == kernels->name) kernels_.push_back(kernels);
    }
    order_.resize(options.working_set_bytes / (block_bytes + kGap));
    std::iota(order_.begin(), order_.end(), 0u);
    Shuffle(order_, random_);
  }

  void Measure(const Variant& variant) {
    options_.progress(Text("copy_*_", SizeText(block_bytes_), variant.suffix));
    std::vector<std::pair<std::string_view, std::function<void(std::byte*, const std::byte*)>>> ways;
    for (const record::CopyKernels* kernels : kernels_) {
      ways.emplace_back(kernels->name, [this, kernels, &variant](std::byte* to, const std::byte* from) {
        Copy(*kernels, variant, to, from);
      });
    }
    if (!variant.cached) {
      ways.emplace_back("unsummed", [this](std::byte* to, const std::byte* from) {
        StreamUnsummed(to, from, block_bytes_);
      });
    }
    ways.emplace_back("memcpy",
                      [this](std::byte* to, const std::byte* from) { std::memcpy(to, from, block_bytes_); });
    std::vector<Samples> taken(ways.size());
    for (std::uint64_t round = 0; round < options_.rounds + 1; ++round) {
      for (std::size_t i = 0; i < ways.size(); ++i) {
        const std::size_t way = (i + round) % ways.size();
        Samples dropped;  // the first round warms page tables
        Turn(variant, round == 0 ? dropped : taken[way], ways[way].second);
      }
    }
    for (std::size_t i = 0; i + 1 < ways.size(); ++i) {
      options_.row(RateRow(Text("copy_", ways[i].first, "_", SizeText(block_bytes_), variant.suffix),
                           "memcpy", taken[i], taken.back()));
    }
  }

  // Not timed: a block by each kernel, every byte compared.
  void Verify(const Variant& variant) {
    for (const record::CopyKernels* kernels : kernels_) {
      std::memset(to_.data(), 0, block_bytes_);
      Copy(*kernels, variant, to_.data(), from_);
      for (std::size_t i = 0; i < block_bytes_; ++i) options_.wrong_bytes += to_.data()[i] != from_[i];
      options_.bytes_verified += block_bytes_;
    }
  }

 private:
  void Copy(const record::CopyKernels& kernels, const Variant& variant, std::byte* to,
            const std::byte* from) {
    // As the reader does when the index has named the place.
    kernels.ask(from, block_bytes_);
    const auto copy = variant.cached ? kernels.copy_cached : kernels.copy_stream;
    for (std::size_t at = 0; at < block_bytes_; at += record::kSegmentBytes) {
      const std::size_t bytes = std::min<std::size_t>(block_bytes_ - at, record::kSegmentBytes);
      sum_ = copy(to + at, from + at, bytes, 0, block_bytes_ - at - bytes);
    }
    StreamingStoreFence();
  }

  template <class Call>
  void Turn(const Variant& variant, Samples& series, Call call) {
    const std::size_t calls = kTurnBytes / block_bytes_;
    Stopwatch turn;
    for (std::size_t i = 0; i < calls; ++i) {
      std::byte* to =
          to_.data() + (variant.reused ? 0 : used_++ % (to_.size() / block_bytes_) * block_bytes_);
      const std::byte* from = from_ + order_[next_++ % order_.size()] * (block_bytes_ + kGap);
      Stopwatch one;
      call(to, from);
      series.call_us.push_back(static_cast<double>(one.Ns()) / 1e3);
    }
    series.rounds.push_back(static_cast<double>(calls * block_bytes_) / static_cast<double>(turn.Ns()));
  }

  BenchOptions& options_;
  const std::byte* from_;
  const std::size_t block_bytes_;
  Buffer to_;
  std::vector<const record::CopyKernels*> kernels_;
  std::vector<std::uint32_t> order_;
  Random random_{13};
  std::size_t next_ = 0, used_ = 0;
  volatile std::uint32_t sum_ = 0;
};

}  // namespace

Status BenchCopies(BenchOptions& options) {
  Result<SharedBytes> from = SharedBytes::Make(options.working_set_bytes);
  if (!from) return from.error();
  for (std::size_t block_bytes : {2u << 20, 64u << 10}) {
    CopyBench bench(options, from->data(), block_bytes);
    for (const Variant& variant :
         {Variant{""}, Variant{"_reused", true}, Variant{"_reused_cached", true, true}}) {
      bench.Measure(variant);
      bench.Verify(variant);
    }
  }
  return Status();
}

}  // namespace cistern
