// SPDX-License-Identifier: Apache-2.0
#include "damage.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "base/assert.h"
#include "flash/format.h"

namespace cistern {
namespace {

namespace fs = std::filesystem;
using Copies = DamageWay::Copies;
using Memory = DamageWay::Memory;

constexpr std::uint64_t kPage = 4096;
// Chunk headers of an arena of one chunk, behind the header.
constexpr std::uint64_t kHeadersEnd = kPage + 1'118'208;

// In place: the file keeps its inode, as a disk's bits rot.
class Bytes {
 public:
  explicit Bytes(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    size_ = fd_ < 0 ? 0 : static_cast<std::uint64_t>(lseek(fd_, 0, SEEK_END));
  }
  ~Bytes() {
    if (fd_ >= 0) close(fd_);
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  std::uint64_t size() const { return size_; }
  std::vector<char> Read(std::uint64_t at, std::uint64_t bytes) const {
    std::vector<char> read(bytes);
    CISTERN_ASSERT(pread(fd_, read.data(), bytes, static_cast<off_t>(at)) == static_cast<ssize_t>(bytes));
    return read;
  }
  void Write(std::uint64_t at, const std::vector<char>& bytes) const {
    CISTERN_ASSERT(pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at)) ==
                   static_cast<ssize_t>(bytes.size()));
  }
  void Flip(std::uint64_t at, Random& random) const {
    std::vector<char> byte = Read(at, 1);
    byte[0] = static_cast<char>(byte[0] ^ (1 << random.Below(8)));
    Write(at, byte);
  }
  void Zero(std::uint64_t at, std::uint64_t bytes) const { Write(at, std::vector<char>(bytes)); }

 private:
  int fd_;
  std::uint64_t size_;
};

void Gone(const std::string& path) { fs::remove(path); }
void Empty(const std::string& path) { fs::resize_file(path, 0); }
void CutTo(const std::string& path, std::uint64_t bytes) { fs::resize_file(path, bytes); }
void Put(const std::string& from, const std::string& to) {
  fs::copy_file(from, to, fs::copy_options::overwrite_existing);
}
void Swap(const std::string& a, const std::string& b) {
  fs::rename(a, a + ".swapped");
  fs::rename(b, a);
  fs::rename(a + ".swapped", b);
}
void Flips(const std::string& path, std::uint64_t from, std::uint64_t end, std::uint64_t bits,
           Random& random) {
  const Bytes bytes(path);
  end = std::min(end, bytes.size());
  for (std::uint64_t i = 0; i < bits; ++i) bytes.Flip(random.Between(from, end - 1), random);
}
void FlipAny(const std::string& path, std::uint64_t bits, Random& random) {
  Flips(path, 0, UINT64_MAX, bits, random);
}
// Pages of zeros, as a disk leaves them that lost writes.
void ZeroPages(const std::string& path, std::uint64_t from, std::uint64_t end, std::uint64_t pages,
               Random& random) {
  const Bytes bytes(path);
  end = std::min(end, bytes.size());
  for (std::uint64_t i = 0; i < pages; ++i) {
    const std::uint64_t at = from + random.Below((end - from) / kPage) * kPage;
    bytes.Zero(at, kPage);
  }
}
void SwapPages(const std::string& path, std::uint64_t from, std::uint64_t pages, Random& random) {
  const Bytes bytes(path);
  for (std::uint64_t i = 0; i < pages; ++i) {
    const std::uint64_t a = from + random.Below((bytes.size() - from) / kPage) * kPage;
    const std::uint64_t b = from + random.Below((bytes.size() - from) / kPage) * kPage;
    const std::vector<char> of_a = bytes.Read(a, kPage), of_b = bytes.Read(b, kPage);
    bytes.Write(a, of_b);
    bytes.Write(b, of_a);
  }
}
void Append(const std::string& path, const std::vector<char>& more) {
  std::ofstream(path, std::ios::binary | std::ios::app)
      .write(more.data(), static_cast<std::streamsize>(more.size()));
}
std::vector<char> Garbage(std::uint64_t bytes, Random& random) {
  std::vector<char> garbage(bytes);
  for (char& byte : garbage) byte = static_cast<char>(random.Next());
  return garbage;
}
std::vector<char> Whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
// Some bytes less than it has, at most `most`.
void CutTail(const std::string& path, std::uint64_t most, Random& random) {
  const std::uint64_t size = fs::file_size(path);
  CutTo(path, size - random.Between(1, std::min(most, size - 1)));
}

struct Region {
  std::uint64_t at, bytes;
};
// One that is in use.
Region AnyRegion(const NodeFiles& node, Random& random) {
  const Bytes bytes(node.device());
  const std::vector<char> head = bytes.Read(0, kPage);
  const auto superblock = flash::DecodeSuperblock(std::as_bytes(std::span(head)));
  CISTERN_ASSERT(superblock.has_value());
  Region region{0, superblock->region_bytes};
  for (int tries = 0; tries < 64; ++tries) {
    region.at = flash::kSuperBytes + random.Below(superblock->regions) * region.bytes;
    const std::vector<char> sector = bytes.Read(region.at, flash::kSectorBytes);
    const auto header = flash::DecodeRegionHeader(std::as_bytes(std::span(sector)));
    if (header && header->epoch != 0) break;
  }
  return region;
}
void RegionOver(DamageScene& s, bool back) {
  const Region a = AnyRegion(s.node, s.random), b = AnyRegion(s.node, s.random);
  const Bytes bytes(s.node.device());
  const std::vector<char> of_a = bytes.Read(a.at, a.bytes), of_b = bytes.Read(b.at, b.bytes);
  bytes.Write(b.at, of_a);
  if (back) bytes.Write(a.at, of_b);
}
void SetJournalBack(DamageScene& s, const NodeFiles& to) {
  Put(to.journal(), s.node.journal());
  Put(to.copy(), s.node.copy());
}
void SetMemoryBack(DamageScene& s, const NodeFiles& to) {
  Put(to.arena(), s.node.arena());
  Put(to.index(), s.node.index());
}

// What is done to one file in place, whichever it is.
template <auto Harm>
void AtJournal(DamageScene& s) {
  Harm(s.node.journal(), s.random);
}
template <auto Harm>
void AtCopy(DamageScene& s) {
  Harm(s.node.copy(), s.random);
}
template <auto Harm>
void AtBothJournals(DamageScene& s) {
  Harm(s.node.journal(), s.random);
  Harm(s.node.copy(), s.random);
}
template <auto Harm>
void AtArena(DamageScene& s) {
  Harm(s.node.arena(), s.random);
}
template <auto Harm>
void AtIndex(DamageScene& s) {
  Harm(s.node.index(), s.random);
}
template <auto Harm>
void AtDevice(DamageScene& s) {
  Harm(s.node.device(), s.random);
}

constexpr auto kGone = [](const std::string& path, Random&) { Gone(path); };
constexpr auto kEmpty = [](const std::string& path, Random&) { Empty(path); };
constexpr auto kBit = [](const std::string& path, Random& random) { FlipAny(path, 1, random); };
constexpr auto kBits = [](const std::string& path, Random& random) { FlipAny(path, 200, random); };
constexpr auto kHalf = [](const std::string& path, Random&) { CutTo(path, fs::file_size(path) / 2); };
constexpr auto kTail = [](const std::string& path, Random& random) { CutTail(path, 64, random); };
constexpr auto kLongTail = [](const std::string& path, Random& random) { CutTail(path, 4096, random); };
constexpr auto kLastByte = [](const std::string& path, Random&) { CutTo(path, fs::file_size(path) - 1); };
constexpr auto kLastBit = [](const std::string& path, Random& random) {
  const Bytes bytes(path);
  bytes.Flip(bytes.size() - random.Between(1, std::min<std::uint64_t>(bytes.size(), 40)), random);
};
constexpr auto kHead = [](const std::string& path, Random& random) { Flips(path, 0, 40, 1, random); };
constexpr auto kFirstPageZero = [](const std::string& path, Random&) {
  const Bytes bytes(path);
  bytes.Zero(0, std::min(kPage, bytes.size()));
};
constexpr auto kZeroTail = [](const std::string& path, Random& random) {
  const Bytes bytes(path);
  const std::uint64_t tail = random.Between(1, std::min<std::uint64_t>(bytes.size(), 512));
  bytes.Zero(bytes.size() - tail, tail);
};
constexpr auto kGarbageBehind = [](const std::string& path, Random& random) {
  Append(path, Garbage(random.Between(1, 10'000), random));
};
constexpr auto kTwice = [](const std::string& path, Random&) { Append(path, Whole(path)); };
constexpr auto kZerosBehind = [](const std::string& path, Random& random) {
  Append(path, std::vector<char>(random.Between(1, 3) * kPage));
};

const DamageWay kWays[] = {
    {"nothing", [](DamageScene&) {}},
    // ---- the journal ----
    {"journal-gone", AtJournal<kGone>},
    {"copy-gone", AtCopy<kGone>},
    {"both-journals-gone", AtBothJournals<kGone>},
    {"journal-empty", AtJournal<kEmpty>},
    {"both-journals-empty", AtBothJournals<kEmpty>},
    {"journal-bit", AtJournal<kBit>},
    {"copy-bit", AtCopy<kBit>},
    {"both-journals-bit", AtBothJournals<kBit>},
    {"journal-half", AtJournal<kHalf>},
    {"both-journals-half", AtBothJournals<kHalf>, Copies::kNone, Memory::kStays},
    {"copy-tail", AtCopy<kLongTail>},
    {"both-journals-last-byte", AtBothJournals<kLastByte>, Copies::kNone, Memory::kStays},
    {"both-journals-tail", AtBothJournals<kTail>, Copies::kNone, Memory::kStays},
    {"both-journals-last-bit", AtBothJournals<kLastBit>, Copies::kNone, Memory::kStays},
    {"both-journals-tail-zero", AtBothJournals<kZeroTail>, Copies::kNone, Memory::kStays},
    {"journal-head", AtJournal<kHead>},
    {"both-journals-head", AtBothJournals<kHead>},
    {"journal-first-page-zero", AtJournal<kFirstPageZero>},
    {"journal-garbage-behind", AtJournal<kGarbageBehind>},
    {"both-journals-garbage-behind", AtBothJournals<kGarbageBehind>},
    {"both-journals-zeros-behind", AtBothJournals<kZerosBehind>},
    {"journal-twice", AtJournal<kTwice>},
    {"both-journals-twice", AtBothJournals<kTwice>},
    {"journals-swapped", [](DamageScene& s) { Swap(s.node.journal(), s.node.copy()); }},
    {"journal-older", [](DamageScene& s) { Put(s.ended.journal(), s.node.journal()); }, Copies::kEnded},
    {"copy-older", [](DamageScene& s) { Put(s.ended.copy(), s.node.copy()); }, Copies::kEnded},
    {"journal-older-copy-gone",
     [](DamageScene& s) {
       Put(s.ended.journal(), s.node.journal());
       Gone(s.node.copy());
     },
     Copies::kEnded},
    {"both-journals-older", [](DamageScene& s) { SetJournalBack(s, s.ended); }, Copies::kEnded},
    {"both-journals-older-same-life", [](DamageScene& s) { SetJournalBack(s, s.running); }, Copies::kRunning,
     Memory::kStays},
    {"both-journals-of-another", [](DamageScene& s) { SetJournalBack(s, s.other); }},
    {"journal-of-another", [](DamageScene& s) { Put(s.other.journal(), s.node.journal()); }},
    {"copy-of-another", [](DamageScene& s) { Put(s.other.copy(), s.node.copy()); }},
    {"journal-is-flash",
     [](DamageScene& s) {
       Put(s.node.device(), s.node.journal());
       CutTo(s.node.journal(), 100'000);
     }},
    {"unfinished-journal-left",
     [](DamageScene& s) { Append(s.node.journal() + ".new", Garbage(5'000, s.random)); }},
    // ---- memory ----
    {"arena-gone", AtArena<kGone>, Copies::kNone, Memory::kStays},
    {"index-gone", AtIndex<kGone>, Copies::kNone, Memory::kStays},
    {"arena-header-zero", AtArena<kFirstPageZero>, Copies::kNone, Memory::kStays},
    {"arena-header-bit", [](DamageScene& s) { Flips(s.node.arena(), 0, 96, 1, s.random); }, Copies::kNone,
     Memory::kStays},
    {"arena-half", AtArena<kHalf>, Copies::kNone, Memory::kStays},
    {"arena-grown", AtArena<kZerosBehind>, Copies::kNone, Memory::kStays},
    {"arena-headers-bits", [](DamageScene& s) { Flips(s.node.arena(), kPage, kHeadersEnd, 2'000, s.random); },
     Copies::kNone, Memory::kStays},
    {"arena-headers-pages-zero",
     [](DamageScene& s) { ZeroPages(s.node.arena(), kPage, kHeadersEnd, 8, s.random); }, Copies::kNone,
     Memory::kStays},
    {"arena-bodies-bits",
     [](DamageScene& s) { Flips(s.node.arena(), 2u << 20, UINT64_MAX, 2'000, s.random); }, Copies::kNone,
     Memory::kStays},
    {"arena-bodies-pages-zero",
     [](DamageScene& s) { ZeroPages(s.node.arena(), 2u << 20, UINT64_MAX, 200, s.random); }, Copies::kNone,
     Memory::kStays},
    {"arena-bodies-pages-swapped", [](DamageScene& s) { SwapPages(s.node.arena(), 2u << 20, 300, s.random); },
     Copies::kNone, Memory::kStays},
    {"index-bits", AtIndex<kBits>, Copies::kNone, Memory::kStays},
    {"index-half", AtIndex<kHalf>, Copies::kNone, Memory::kStays},
    {"index-first-page-zero", AtIndex<kFirstPageZero>, Copies::kNone, Memory::kStays},
    {"index-of-another", [](DamageScene& s) { Put(s.other.index(), s.node.index()); }, Copies::kNone,
     Memory::kStays},
    {"arena-of-another", [](DamageScene& s) { Put(s.other.arena(), s.node.arena()); }, Copies::kNone,
     Memory::kStays},
    {"memory-of-another", [](DamageScene& s) { SetMemoryBack(s, s.other); }, Copies::kNone, Memory::kStays},
    {"memory-older", [](DamageScene& s) { SetMemoryBack(s, s.ended); }, Copies::kEnded, Memory::kStays},
    {"memory-older-same-life", [](DamageScene& s) { SetMemoryBack(s, s.running); }, Copies::kRunning,
     Memory::kStays},
    {"arena-older-index-of-today", [](DamageScene& s) { Put(s.ended.arena(), s.node.arena()); },
     Copies::kEnded, Memory::kStays},
    // ---- flash ----
    {"flash-gone", AtDevice<kGone>},
    {"flash-empty", AtDevice<kEmpty>},
    {"flash-half", AtDevice<kHalf>, Copies::kNone, Memory::kGoes},
    {"flash-grown", AtDevice<kZerosBehind>, Copies::kNone, Memory::kGoes},
    {"flash-super-zero", AtDevice<kFirstPageZero>, Copies::kNone, Memory::kGoes},
    {"flash-super-bit", [](DamageScene& s) { Flips(s.node.device(), 0, 64, 1, s.random); }, Copies::kNone,
     Memory::kGoes},
    {"flash-bits", AtDevice<kBits>, Copies::kNone, Memory::kGoes},
    {"flash-region-header-zero",
     [](DamageScene& s) { Bytes(s.node.device()).Zero(AnyRegion(s.node, s.random).at, kPage); },
     Copies::kNone, Memory::kGoes},
    {"flash-region-end-zero",
     [](DamageScene& s) {
       const Region region = AnyRegion(s.node, s.random);
       Bytes(s.node.device()).Zero(region.at + region.bytes - 2 * kPage, 2 * kPage);
     },
     Copies::kNone, Memory::kGoes},
    {"flash-region-over-another", [](DamageScene& s) { RegionOver(s, false); }, Copies::kNone, Memory::kGoes},
    {"flash-regions-swapped", [](DamageScene& s) { RegionOver(s, true); }, Copies::kNone, Memory::kGoes},
    {"flash-pages-zero",
     [](DamageScene& s) { ZeroPages(s.node.device(), flash::kSuperBytes, UINT64_MAX, 100, s.random); },
     Copies::kNone, Memory::kGoes},
    {"flash-pages-swapped",
     [](DamageScene& s) { SwapPages(s.node.device(), flash::kSuperBytes, 100, s.random); }, Copies::kNone,
     Memory::kGoes},
    {"flash-of-another", [](DamageScene& s) { Put(s.other.device(), s.node.device()); }},
    {"flash-older", [](DamageScene& s) { Put(s.ended.device(), s.node.device()); }, Copies::kEnded,
     Memory::kGoes},
    {"flash-older-same-life", [](DamageScene& s) { Put(s.running.device(), s.node.device()); },
     Copies::kRunning, Memory::kGoes},
    {"flash-older-under-memory", [](DamageScene& s) { Put(s.ended.device(), s.node.device()); },
     Copies::kEnded, Memory::kStays},
    // ---- several ----
    {"journal-and-flash-older",
     [](DamageScene& s) {
       SetJournalBack(s, s.ended);
       Put(s.ended.device(), s.node.device());
     },
     Copies::kEnded, Memory::kStays},
    {"memory-and-flash-older",
     [](DamageScene& s) {
       SetMemoryBack(s, s.ended);
       Put(s.ended.device(), s.node.device());
     },
     Copies::kEnded, Memory::kStays},
    {"memory-and-journal-older",
     [](DamageScene& s) {
       SetMemoryBack(s, s.ended);
       SetJournalBack(s, s.ended);
     },
     Copies::kEnded, Memory::kStays},
    {"memory-and-flash-of-another",
     [](DamageScene& s) {
       SetMemoryBack(s, s.other);
       Put(s.other.device(), s.node.device());
     },
     Copies::kNone, Memory::kStays},
    {"all-older",
     [](DamageScene& s) {
       SetMemoryBack(s, s.ended);
       SetJournalBack(s, s.ended);
       Put(s.ended.device(), s.node.device());
     },
     Copies::kEnded, Memory::kStays, true},
    {"journal-and-flash-older-without-memory",
     [](DamageScene& s) {
       SetJournalBack(s, s.ended);
       Put(s.ended.device(), s.node.device());
     },
     Copies::kEnded, Memory::kGoes, true},
};

}  // namespace

std::span<const DamageWay> DamageWays() { return kWays; }

}  // namespace cistern
