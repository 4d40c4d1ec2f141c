// SPDX-License-Identifier: Apache-2.0
#include "memory/arena_file.h"

#include <errno.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "arena/protocol.h"
#include "base/format.h"
#include "base/huge_pages.h"
#include "base/units.h"
#include "memory/directory_lock.h"
#include "memory/host_memory.h"
#include "record/seal.h"

namespace cistern::memory {
namespace {

std::string TenantDirectory(const std::string& memory_dir, const std::string& tenant) {
  return Text(memory_dir, "/", tenant);
}

Status CheckTenant(const std::string& tenant) {
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
  bool good = !tenant.empty() && tenant.size() < 64 && tenant.front() != '.' &&
              tenant.find_first_not_of(kAllowed) == std::string::npos;
  if (good) return Status();
  return Status(Code::kInvalid, Text("tenant \"", tenant,
                                     "\": a tenant has 1 to 63 of a-z 0-9 - _ . and begins with no dot"));
}

constexpr std::string_view kWayOut =
    "`cistern forget` with this directory discards it (the cache in it is lost)";

bool LiesOn(long file_system, const std::string& path) {
  struct statfs fs;
  return ::statfs(path.c_str(), &fs) == 0 && fs.f_type == file_system;
}

// Its files live in memory, so that the host's memory is what they take.
constexpr long kTmpfs = 0x01021994;
// Its files can be mapped and not written, and the lock and the journal are written.
constexpr long kHugetlbfs = 0x958458f6;

Status CheckWritable(const std::string& memory_dir) {
  if (!LiesOn(kHugetlbfs, io::NearestPlace(memory_dir))) return Status();
  return Status(Code::kInvalid, Text("memory_dir ", memory_dir,
                                     ": lies on hugetlbfs, whose files cannot be "
                                     "written: use a tmpfs, mounted with huge=advise for large pages"));
}

// R14: no room is a start error, with the numbers, before any of it is taken.
Status CheckRoom(const std::string& directory, std::uint64_t needed) {
  struct statvfs fs;
  if (::statvfs(directory.c_str(), &fs) != 0) {
    return Status(Code::kIoError, Text("memory_dir ", directory, ": ", ErrnoText(errno)));
  }
  std::uint64_t available = fs.f_blocks == 0 ? needed : std::uint64_t{fs.f_bavail} * fs.f_frsize;
  const char* whose = "its file system has";
  if (Result<HostMemory> memory = ReadHostMemory(); memory && LiesOn(kTmpfs, directory)) {
    if (memory->available_bytes < available) {
      available = memory->available_bytes;
      whose = "the host or its cgroup has";
    }
  }
  if (needed <= available) return Status();
  return Status(Code::kBusy,
                Text("memory_dir ", directory, ": ", needed, " bytes are needed for arena and index, ", whose,
                     " ", available,
                     " available (arenas of an earlier node that clients still map count as used); "
                     "ask for less memory, free some, or make it larger (in Docker with --shm-size)"));
}

struct OpenedFile {
  Fd fd;
  Mapping map;
};

Result<OpenedFile> MapWhole(Fd fd, const std::string& path, std::uint64_t bytes,
                            Pages pages = Pages::kAtTouch) {
  Result<Mapping> map = Mapping::Map(fd.get(), path, 0, bytes, Access::kReadWrite, pages);
  if (!map) return Error(std::move(map.error()));
  return OpenedFile{std::move(fd), std::move(*map)};
}

// A new file of `bytes` appears under its name when it is whole: `reserve` makes it so where it is mapped,
// and `fill` writes the header before that.
template <class Reserve, class Fill>
Result<OpenedFile> MakeFile(const std::string& path, std::uint64_t bytes, Reserve reserve, Fill fill) {
  const std::string unfinished = path + ".new";
  ::unlink(unfinished.c_str());
  Result<Fd> fd = io::OpenFile(unfinished, io::OpenMode::kCreateNew);
  if (!fd) return Error(std::move(fd.error()));
  Status reserved = ::ftruncate(fd->get(), static_cast<off_t>(bytes)) == 0
                        ? Status()
                        : Status(Code::kIoError, Text(unfinished, ": ", ErrnoText(errno)));
  Result<OpenedFile> file =
      reserved.ok() ? MapWhole(std::move(*fd), path, bytes) : Error(std::move(reserved));
  if (file) reserved = reserve(*file, unfinished);
  if (!file || !reserved.ok()) {
    ::unlink(unfinished.c_str());
    return file ? Error(std::move(reserved)) : std::move(file);
  }
  fill(file->map.data());
  if (::rename(unfinished.c_str(), path.c_str()) != 0) {
    Status status(Code::kIoError, Text("rename ", unfinished, ": ", ErrnoText(errno)));
    ::unlink(unfinished.c_str());
    return Error(std::move(status));
  }
  return file;
}

// Bytes of memory that a file has.
Result<std::uint64_t> HeldBytes(int fd, const std::string& path) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Error(Code::kIoError, Text(path, ": ", ErrnoText(errno)));
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

// A file that something cut or punched would be a fault in every reader.
Status MakeWholeAgain(int fd, const std::string& path, std::uint64_t bytes) {
  const Result<std::uint64_t> held = HeldBytes(fd, path);
  if (!held) return held.error();
  return *held >= bytes ? Status() : io::Preallocate(fd, path, bytes);
}

// A file with room is longer than its geometry says, by a hole. A node of before there was room, which would
// take all of it from the host, refuses it for that; clients of then map it and read.
std::uint64_t FileBytes(const arena::Geometry& geometry, bool has_room) {
  return geometry.file_bytes() + (has_room ? arena::kSlotsBoundary : 0);
}

std::uint64_t MemoryBytes(const arena::Geometry& geometry, std::uint32_t headers) {
  return geometry.header_offset(0) + headers * arena::Geometry::header_memory_bytes();
}

// Headers that a start takes, of those that it is asked for.
std::uint32_t FirstHeaders(const ArenaOptions& options, std::uint32_t asked) {
  const std::uint64_t first = options.first_bytes / arena::kHeaderSpanBytes;
  return options.first_bytes == 0 ? asked
                                  : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(first, 1, asked));
}

arena::Geometry GeometryOf(const ArenaOptions& options) {
  return arena::Geometry::Within(std::max(options.room_bytes, options.memory_bytes), options.alignment);
}

// Of a new one's file.
std::uint64_t NewBytes(const ArenaOptions& options) {
  const std::uint32_t headers = arena::Geometry::Within(options.memory_bytes, options.alignment).header_count;
  const arena::Geometry geometry = GeometryOf(options);
  return FileBytes(geometry, geometry.header_count > FirstHeaders(options, headers));
}

Status CheckVersion(const arena::ArenaHeader& header, const std::string& path) {
  if (header.magic != arena::kArenaMagic)
    return Status(Code::kMismatch, Text(path, ": is no arena of Cistern; ", kWayOut));
  if (header.version == arena::kFormatVersion) return Status();
  return Status(Code::kMismatch, Text(path, ": has format version ", header.version, " and this node reads ",
                                      arena::kFormatVersion, "; start the node that wrote it, or ", kWayOut));
}

std::uint64_t SlotsOffset(const arena::Geometry& geometry, std::uint32_t header) {
  return geometry.slots_offset() + header * arena::kHeaderSpanBytes;
}

// The headers and their slots have memory, and what lies before the first.
Status ReserveIn(int fd, const std::string& path, const arena::Geometry& geometry, const HeaderRange& range) {
  const std::uint64_t begin = range.first == 0 ? 0 : geometry.header_offset(range.first);
  const std::uint64_t end = geometry.header_offset(range.first + range.count);
  Status status = io::ReserveRange(fd, path, begin, end - begin);
  if (!status.ok()) return status;
  return io::ReserveRange(fd, path, SlotsOffset(geometry, range.first),
                          range.count * arena::kHeaderSpanBytes);
}

// Of a header, up to its directory: a generation is never repeated over the file's life.
constexpr std::uint64_t kKeptBytes = offsetof(arena::ChunkHeader, directory);

// The same has none any more, but for what is kept of each header before `most`, which was served once.
Status ReleaseIn(int fd, const std::string& path, const arena::Geometry& geometry, const HeaderRange& range,
                 std::uint64_t most) {
  Status status =
      io::ReleaseRange(fd, path, SlotsOffset(geometry, range.first), range.count * arena::kHeaderSpanBytes);
  const std::uint32_t end = range.first + range.count;
  const auto kept_end = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(most, range.first, end));
  for (std::uint32_t i = range.first; status.ok() && i < kept_end; ++i) {
    status = io::ReleaseRange(fd, path, geometry.header_offset(i) + kKeptBytes,
                              sizeof(arena::ChunkHeader) - kKeptBytes);
  }
  if (!status.ok() || kept_end == end) return status;
  return io::ReleaseRange(fd, path, geometry.header_offset(kept_end),
                          std::uint64_t{end - kept_end} * sizeof(arena::ChunkHeader));
}

enum class Move : bool { kNo, kHere };  // into huge pages

// In steps, so that nobody who waits for it waits for gigabytes; `stop` says when to leave the rest. That it
// failed costs a slower first copy and nothing else.
void MakeRangePresent(std::byte* from, std::uint64_t bytes, Move move, const std::atomic<bool>* stop) {
  static constexpr std::uint64_t kStep = 4u << 20;
  const std::uint64_t before = reinterpret_cast<std::uintptr_t>(from) % arena::kUnitBytes;
  for (std::uint64_t at = 0; at < bytes; at += kStep) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) return;
    std::byte* step = from - before + at;
    const std::uint64_t step_bytes = std::min(kStep, bytes - at) + before;
    // Makes pages present without changing them.
    static_cast<void>(::madvise(step, step_bytes, MADV_POPULATE_WRITE));
    if (move == Move::kHere) MoveIntoHugePages(step, step_bytes);
  }
}

void MakeHeaderPresent(const arena::ArenaSpace& arena, std::uint32_t header, Move move,
                       const std::atomic<bool>* stop) {
  const arena::Geometry& geometry = arena.geometry();
  MakeRangePresent(reinterpret_cast<std::byte*>(arena.header(header)), sizeof(arena::ChunkHeader), move,
                   stop);
  MakeRangePresent(arena.slot(geometry.place(header * arena::kHeaderSpanBytes)), arena::kHeaderSpanBytes,
                   move, stop);
}

// The header of a file that is there; none where there is no file.
template <class Header>
Result<std::optional<std::pair<Fd, Header>>> ReadHeader(const std::string& path) {
  Result<Fd> fd = io::OpenFile(path, io::OpenMode::kReadWrite);
  if (!fd && ::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return std::nullopt;
  if (!fd) return Error(std::move(fd.error()));
  if (Status own = io::CheckOwnFile(fd->get(), path); !own.ok()) return Error(std::move(own));
  Header header{};
  ssize_t got = ::pread(fd->get(), &header, sizeof(header), 0);
  if (got < 0) return Error(Code::kIoError, Text("read ", path, ": ", ErrnoText(errno)));
  return std::pair(std::move(*fd), header);
}

// Clients that still map a file that goes must find nothing there any more.
Status ClearIncarnations(Fd fd, const std::string& path) {
  Result<OpenedFile> map = MapWhole(std::move(fd), path, sizeof(arena::IndexHeader));
  if (!map) return std::move(map.error());
  arena::RealWords words;
  for (std::uint32_t i = 0; i < arena::kMaxNamespaces; ++i)
    arena::SetIncarnation(words, arena::IndexSpace(map->map.data(), 1), i, 0);
  return Status();
}

}  // namespace

Status ArenaOptions::Validate() const {
  if (memory_dir.empty()) return Status(Code::kInvalid, "memory_dir: is empty");
  if (Status tenant_status = CheckTenant(tenant); !tenant_status.ok()) return tenant_status;
  if (alignment != 512 && alignment != 4096) {
    return Status(Code::kInvalid, Text("alignment: ", alignment, ", and 512 or 4096 can be"));
  }
  const std::uint64_t least = arena::Geometry{alignment, 1}.file_bytes();
  if (memory_bytes < least) {
    return Status(Code::kInvalid, Text("memory: ", memory_bytes, " bytes, and ", least, " is the least"));
  }
  const std::uint64_t most = arena::Geometry{alignment, arena::Geometry::MaxHeaders(alignment)}.file_bytes();
  if (memory_bytes > most) {
    return Status(Code::kInvalid, Text("memory: ", memory_bytes, " bytes, and ", most,
                                       " is the most with alignment ", alignment));
  }
  return Status();
}

Status ArenaFile::Check(const ArenaOptions& options) {
  if (Status valid = options.Validate(); !valid.ok()) return valid;
  const std::string directory = TenantDirectory(options.memory_dir, options.tenant);
  Status fits = io::CheckSharedDirectory("memory_dir", options.memory_dir);
  if (fits.ok()) fits = CheckWritable(options.memory_dir);
  if (fits.ok() && ::access(options.memory_dir.c_str(), F_OK) == 0)
    fits = io::CheckOwnDirectory("memory_dir", directory);
  if (!fits.ok()) return fits;
  const std::string path = directory + "/arena";
  const auto found = ReadHeader<arena::ArenaHeader>(path);
  if (found)
    return *found ? CheckVersion((*found)->second, path) : io::CheckFileLimit(path, NewBytes(options));
  return ::geteuid() == 0 && found.error().code() == Code::kDenied ? Status() : found.error();
}

Result<ArenaFile> ArenaFile::Open(const ArenaOptions& options, const Clock& clock) {
  if (Status valid = options.Validate(); !valid.ok()) return Error(std::move(valid));
  ArenaFile file;
  file.nodes_ = options.nodes;
  file.directory_ = TenantDirectory(options.memory_dir, options.tenant);
  Status made = io::MakeSharedDirectory("memory_dir", options.memory_dir);
  if (made.ok()) made = CheckWritable(options.memory_dir);
  if (made.ok()) made = io::MakeOwnDirectory("memory_dir", file.directory_);
  if (!made.ok()) return Error(std::move(made));
  Result<DirectoryLock> lock = LockDirectory(file.directory_, options.lock_wait_us, clock);
  if (!lock) return Error(std::move(lock.error()));
  file.lock_ = std::move(*lock);
  if (Status opened = file.OpenArena(options); !opened.ok()) return Error(std::move(opened));
  if (Status opened = file.OpenIndex(); !opened.ok()) {
    file.GiveBack();
    return Error(std::move(opened));
  }
  file.arena_guard_ = MappingGuard(file.arena_map_, Access::kReadWrite);
  file.index_guard_ = MappingGuard(file.index_map_, Access::kReadWrite);
  arena::RealWords words;
  arena::ArenaHeader* header = file.arena().header();
  // First of all: the leases of a node that was killed are over, and clients that still map the file see it.
  words.StoreRelease(&header->node_alive, 0);
  file.boot_count_ = words.Load(&header->boot_count) + 1;
  words.Store(&header->boot_count, file.boot_count_);
  file.StartHugePages(options.huge_page_program);
  return file;
}

// A node refuses an arena of another version by name; records of another one it would take for damaged.
static_assert(arena::kFormatVersion == 1 && record::kRecordVersion == 1, "they go up together");

Status ArenaFile::OpenArena(const ArenaOptions& options) {
  const std::string path = directory_ + "/arena";
  auto found = ReadHeader<arena::ArenaHeader>(path);
  if (!found) return std::move(found.error());
  if (!*found) {
    if (Status made = MakeArena(options, path); !made.ok()) return made;
  } else {
    auto& [fd, header] = **found;
    if (Status version = CheckVersion(header, path); !version.ok()) return version;
    geometry_ = {static_cast<std::uint32_t>(header.alignment),
                 static_cast<std::uint32_t>(header.header_count)};
    Result<std::uint64_t> size = io::FileSize(fd.get(), path);
    if (!size) return std::move(size.error());
    const bool has_room = header.served_headers != 0 && header.served_headers <= header.header_count;
    if (header.header_count > ~std::uint32_t{0} || !geometry_.valid() ||
        (*size != FileBytes(geometry_, false) && !(has_room && *size == FileBytes(geometry_, true)))) {
      return Status(Code::kMismatch,
                    Text(path, ": has ", *size, " bytes and its header says ", header.header_count,
                         " chunks with alignment ", header.alignment, ", so it was damaged; ", kWayOut));
    }
    Result<OpenedFile> opened = MapWhole(std::move(fd), path, geometry_.file_bytes());
    if (!opened) return std::move(opened.error());
    arena_fd_ = std::move(opened->fd);
    arena_map_ = std::move(opened->map);
    if (Status whole = MakeWhole(path); !whole.ok()) return whole;
    asked_headers_ = arena::Geometry::Within(options.memory_bytes, options.alignment).header_count;
    if (options.alignment != geometry_.alignment) {
      notes_.push_back(Text(path, " keeps the alignment ", geometry_.alignment,
                            " that it was made with, and not the ", options.alignment,
                            " that was asked for; to change that, end the node and ", kWayOut));
    }
    if (asked_headers_ > geometry_.header_count) {
      notes_.push_back(Text(path, " has room for ", MemoryBytes(geometry_, geometry_.header_count),
                            " bytes, and ", MemoryBytes(geometry_, asked_headers_),
                            " were asked for; to have more than that, end the node and ", kWayOut));
      asked_headers_ = geometry_.header_count;
    }
    Divide(arena_map_.data());
    if (Status grown = Grow(options, path); !grown.ok()) return grown;
  }
  Result<Fd> read = io::OpenFile(path, io::OpenMode::kRead);
  if (!read) return std::move(read.error());
  arena_read_fd_ = std::move(*read);
  return Status();
}

Status ArenaFile::MakeArena(const ArenaOptions& options, const std::string& path) {
  const std::uint32_t headers = arena::Geometry::Within(options.memory_bytes, options.alignment).header_count;
  geometry_ = GeometryOf(options);
  asked_headers_ = headers;
  const std::uint32_t first = FirstHeaders(options, headers);
  const bool has_room = geometry_.header_count > first;
  const std::uint64_t memory =
      geometry_.header_count > headers ? MemoryBytes(geometry_, headers) : geometry_.file_bytes();
  Status room = CheckRoom(directory_, memory + geometry_.index_bytes(headers));
  const std::uint64_t bytes = NewBytes(options);
  if (room.ok()) room = io::CheckFileLimit(path, bytes);
  if (!room.ok()) return room;
  const auto reserve = [&](OpenedFile& file, const std::string& unfinished) {
    Divide(file.map.data());
    return has_room ? ReserveIn(file.fd.get(), unfinished, geometry_, {0, first})
                    : io::Preallocate(file.fd.get(), unfinished, bytes);
  };
  Result<OpenedFile> made = MakeFile(path, bytes, reserve, [&](std::byte* base) {
    arena::ArenaHeader* header = arena::ArenaSpace(base, geometry_).header();
    header->magic = arena::kArenaMagic;
    header->version = arena::kFormatVersion;
    header->alignment = geometry_.alignment;
    header->header_count = geometry_.header_count;
    header->served_headers = header->most_headers = has_room ? first : 0;
  });
  if (!made) return std::move(made.error());
  arena_fd_ = std::move(made->fd);
  arena_map_ = std::move(made->map);
  fresh_ = true;
  return Status();
}

std::uint32_t ArenaFile::served() const {
  arena::RealWords words;
  return arena::ServedHeaders(words, arena());
}

Status ArenaFile::MakeWhole(const std::string& path) {
  const std::uint32_t headers = served(), all = geometry_.header_count;
  arena::RealWords words;
  const std::uint64_t most = std::min<std::uint64_t>(words.LoadRelaxed(&arena().header()->most_headers), all);
  std::uint64_t whole = geometry_.file_bytes();
  if (headers < all) {
    // Nobody serves what lies behind: a node that was killed as it gave it back, or a late reader, left it.
    Status released = ReleaseIn(arena_fd_.get(), path, geometry_, {headers, all - headers}, most);
    if (!released.ok()) return released;
    whole = MemoryBytes(geometry_, headers) + (std::max<std::uint64_t>(most, headers) - headers) * kKeptBytes;
  }
  const Result<std::uint64_t> held = HeldBytes(arena_fd_.get(), path);
  if (!held) return held.error();
  if (headers < all ? *held == whole : *held >= whole) return Status();
  return ReserveIn(arena_fd_.get(), path, geometry_, {0, headers});
}

Status ArenaFile::Grow(const ArenaOptions& options, const std::string& path) {
  const std::uint32_t before = served(), first = FirstHeaders(options, asked_headers_);
  Status status = CheckGrowth(before, asked_headers_);
  if (!status.ok() || first <= before) return status;
  const HeaderRange more{before, first - before};
  status = ReserveIn(arena_fd_.get(), path, geometry_, more);
  arena::RealWords words;
  if (status.ok()) {
    arena::SetServedHeaders(words, arena(), first);
  } else {
    Release(more);
  }
  return status;
}

Result<std::uint32_t> ArenaFile::HeadersOf(std::uint64_t memory_bytes) const {
  const std::uint32_t headers = arena::Geometry::Within(memory_bytes, geometry_.alignment).header_count;
  if (headers > 0 && headers <= geometry_.header_count) return headers;
  if (headers == 0)
    return Error(Code::kInvalid, Text("memory: ", memory_bytes, " bytes, and ",
                                      arena::Geometry{geometry_.alignment, 1}.file_bytes(), " is the least"));
  return Error(Code::kInvalid,
               Text("memory: ", RoughSizeText(memory_bytes), ", and the arena in ", directory_,
                    " has room for ", RoughSizeText(MemoryBytes(geometry_, geometry_.header_count)),
                    ", eight times what it was made with; to have more, end the node and ", kWayOut));
}

Status ArenaFile::CheckGrowth(std::uint32_t served, std::uint32_t headers) const {
  if (headers <= served) return Status();
  return CheckRoom(directory_, (headers - served) * arena::Geometry::header_memory_bytes());
}

Status ArenaFile::Reserve(std::uint32_t header) {
  const std::string path = directory_ + "/arena";
  Status reserved = CheckRoom(directory_, arena::Geometry::header_memory_bytes());
  if (reserved.ok()) reserved = ReserveIn(arena_fd_.get(), path, geometry_, {header, 1});
  if (!reserved.ok()) return reserved;
  Touch(header);
  return Status();
}

// A run is of a node whole, whatever is served of it.
void ArenaFile::Divide(std::byte* base) {
  plan_ = NodePlan(SharesOf(nodes_), NearCount(nodes_), asked_headers_);
  if (plan_.nodes() == 1) return;
  std::byte* const slots = base + geometry_.slots_offset();
  for (std::uint32_t header = 0; header < geometry_.header_count; header += plan_.run()) {
    const std::uint64_t headers = std::min(plan_.run(), geometry_.header_count - header);
    if (PreferNode(slots + header * arena::kHeaderSpanBytes, headers * arena::kHeaderSpanBytes,
                   nodes_[plan_.Of(header)].number))
      continue;
    notes_.push_back(
        "memory nodes: the arena lies where the system puts it, and not where its engines run, for mbind is "
        "refused here: a container needs SYS_NICE for it, or a seccomp profile that lets it through");
    plan_ = {};
    return;
  }
}

// Of an earlier start, of another version or with another plan.
void ArenaFile::MoveToNode(std::uint32_t header) const {
  if (plan_.nodes() == 1) return;
  std::byte* const slots = arena().slot(geometry_.place(header * arena::kHeaderSpanBytes));
  const std::uint32_t node = nodes_[plan_.Of(header)].number;
  if (NodeOfPage(slots) == node && NodeOfPage(slots + arena::kHeaderSpanBytes - 1) == node) return;
  static_cast<void>(PreferNode(slots, arena::kHeaderSpanBytes, node, true));
}

void ArenaFile::MakePresent(std::uint32_t header, const std::atomic<bool>* stop) const {
  MoveToNode(header);
  MakeHeaderPresent(arena(), header, moves_here_ ? Move::kHere : Move::kNo, stop);
  if (huge_page_process_ == nullptr) return;
  if (huge_page_process_->Move(SlotsOffset(geometry_, header), arena::kHeaderSpanBytes)) Touch(header, stop);
}

void ArenaFile::Touch(std::uint32_t header, const std::atomic<bool>* stop) const {
  MakeHeaderPresent(arena(), header, Move::kNo, stop);
}

void ArenaFile::StartHugePages(const std::string& program) {
  if (program.empty()) return;
  moves_here_ = false;
  auto started = HugePageProcess::Start(program, arena_read_fd_.get());
  if (started) {
    huge_page_process_ = std::move(*started);
  } else {
    notes_.push_back(Text("huge pages: memory has none, for the process that moves it there cannot start: ",
                          started.error().message()));
  }
}

void ArenaFile::Release(const HeaderRange& range) {
  arena::RealWords words;
  const std::uint64_t most = words.LoadRelaxed(&arena().header()->most_headers);
  // What cannot be given back now is at the next start.
  static_cast<void>(ReleaseIn(arena_fd_.get(), directory_ + "/arena", geometry_, range, most));
}

Status ArenaFile::OpenIndex() {
  const std::string path = directory_ + "/index";
  auto found = ReadHeader<arena::IndexHeader>(path);
  if (!found) return std::move(found.error());
  const std::uint32_t headers = std::max(served(), asked_headers_);
  index_buckets_ = geometry_.bucket_count(headers);
  const std::uint64_t bytes = geometry_.index_bytes(headers);
  bool fits = false;
  if (*found) {
    auto& [fd, header] = **found;
    Result<std::uint64_t> size = io::FileSize(fd.get(), path);
    if (!size) return std::move(size.error());
    fits = header.magic == arena::kIndexMagic && header.version == arena::kFormatVersion &&
           header.bucket_count == index_buckets_ && *size == bytes;
    if (!fits && header.magic == arena::kIndexMagic && *size >= sizeof(arena::IndexHeader)) {
      if (Status cleared = ClearIncarnations(std::move(fd), path); !cleared.ok()) return cleared;
    }
  }
  const auto reserve = [&](OpenedFile& file, const std::string& unfinished) {
    return io::Preallocate(file.fd.get(), unfinished, bytes);
  };
  // It is made from the arena at each start, so another one is made where it does not fit.
  // All of it is written at the start.
  Result<OpenedFile> opened = fits ? MapWhole(std::move((*found)->first), path, bytes, Pages::kAtOnce)
                                   : MakeFile(path, bytes, reserve, [this](std::byte* base) {
                                       arena::IndexHeader* header =
                                           arena::IndexSpace(base, index_buckets_).header();
                                       header->magic = arena::kIndexMagic;
                                       header->version = arena::kFormatVersion;
                                       header->bucket_count = index_buckets_;
                                     });
  if (!opened) return std::move(opened.error());
  if (Status whole = MakeWholeAgain(opened->fd.get(), path, bytes); !whole.ok()) return whole;
  index_map_ = std::move(opened->map);
  Result<Fd> read = io::OpenFile(path, io::OpenMode::kRead);
  if (!read) return std::move(read.error());
  index_read_fd_ = std::move(*read);
  return Status();
}

ArenaFile::ArenaFile(ArenaFile&&) noexcept = default;
ArenaFile& ArenaFile::operator=(ArenaFile&&) noexcept = default;
ArenaFile::~ArenaFile() = default;

arena::ArenaSpace ArenaFile::arena() const { return {arena_map_.data(), geometry_}; }
arena::IndexSpace ArenaFile::index() const { return {index_map_.data(), index_buckets_}; }

void ArenaFile::GiveBack() {
  if (fresh_) Discard();
}

void ArenaFile::SetAlive(bool alive) {
  arena::RealWords words;
  words.StoreRelease(&arena().header()->node_alive, alive ? boot_count_ : 0);
}

void ArenaFile::Discard() {
  for (const char* name : {"/arena", "/index"}) ::unlink((directory_ + name).c_str());
}

// ---- forget ----------------------------------------------------------------------------------------------

Result<std::uint64_t> ForgetArena(const std::string& memory_dir, const std::string& tenant,
                                  const Clock& clock) {
  if (Status valid = CheckTenant(tenant); !valid.ok()) return Error(std::move(valid));
  const std::string directory = TenantDirectory(memory_dir, tenant);
  // With those that a start which was killed had not made whole.
  constexpr std::array kFiles{"/arena", "/index", "/arena.new", "/index.new"};
  if (std::ranges::none_of(
          kFiles, [&](const char* name) { return ::access((directory + name).c_str(), F_OK) == 0; })) {
    return Error(Code::kMiss, Text("forget ", directory, ": there is no arena"));
  }
  Result<DirectoryLock> lock = LockDirectory(directory, 0, clock);
  if (!lock) return Error(std::move(lock.error()));
  // Clients that still map the files must find nothing any more: what lives on there is past any drop. Leases
  // of a node that was killed end as they do when its successor starts.
  auto arena = ReadHeader<arena::ArenaHeader>(directory + "/arena");
  if (arena && *arena && (*arena)->second.magic == arena::kArenaMagic) {
    Result<OpenedFile> map =
        MapWhole(std::move((*arena)->first), directory + "/arena", sizeof(arena::ArenaHeader));
    if (!map) return Error(std::move(map.error()));
    arena::RealWords().StoreRelease(&reinterpret_cast<arena::ArenaHeader*>(map->map.data())->node_alive, 0);
  }
  auto index = ReadHeader<arena::IndexHeader>(directory + "/index");
  if (index && *index && (*index)->second.magic == arena::kIndexMagic) {
    Status cleared = ClearIncarnations(std::move((*index)->first), directory + "/index");
    if (!cleared.ok()) return Error(std::move(cleared));
  }
  std::uint64_t freed = 0;
  for (const char* name : kFiles) {
    const std::string path = directory + name;
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) continue;
    if (::unlink(path.c_str()) != 0)
      return Error(Code::kIoError, Text("remove ", path, ": ", ErrnoText(errno)));
    freed += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return freed;
}

// ---- fault-in --------------------------------------------------------------------------------------------

FaultIn::FaultIn(const ArenaFile& file, std::uint32_t headers, std::function<void(const Status&)> say)
    : file_(file), headers_(headers), say_(std::move(say)), end_(headers), thread_([this] { Work(); }) {}

FaultIn::~FaultIn() {
  stop_.store(true, std::memory_order_relaxed);
  if (HugePageProcess* process = file_.huge_page_process()) process->End();
  thread_.join();
}

template <class Call>
void FaultIn::ForEach(Call call) const {
  // The short runs of free headers at the end are carved first (FreeHeaders), each from its beginning.
  for (std::uint32_t end = headers_; end > 0; end &= end - 1) {
    for (std::uint32_t header = end & (end - 1); header < end; ++header) {
      if (stop_.load(std::memory_order_relaxed)) return;
      call(header, header < end_.load(std::memory_order_relaxed));
    }
  }
}

void FaultIn::Work() {
  HugePageProcess* const process = file_.huge_page_process();
  // Moving may wait for long.
  if (process != nullptr) {
    ForEach([&](std::uint32_t header, bool wanted) {
      if (wanted) file_.Touch(header, &stop_);
    });
  }
  ForEach([&](std::uint32_t header, bool wanted) {
    if (wanted) file_.MakePresent(header, &stop_);
    done_.fetch_add(1, std::memory_order_relaxed);
  });
  if (process == nullptr) return;
  const Status ended = process->Await();
  if (!ended.ok() && say_) say_(ended);
}

}  // namespace cistern::memory
