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
#include <optional>
#include <string_view>
#include <utility>

#include "arena/protocol.h"
#include "base/format.h"
#include "base/huge_pages.h"
#include "memory/directory_lock.h"
#include "memory/host_memory.h"

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
  if (!LiesOn(kHugetlbfs, memory_dir)) return Status();
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
                     "ask for less memory or free some"));
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

// A new file appears under its name when it is whole: `fill` writes the header before that.
template <class Fill>
Result<OpenedFile> MakeFile(const std::string& path, std::uint64_t bytes, Fill fill) {
  const std::string unfinished = path + ".new";
  ::unlink(unfinished.c_str());
  Result<Fd> fd = io::OpenFile(unfinished, io::OpenMode::kCreateNew);
  if (!fd) return Error(std::move(fd.error()));
  Status reserved = io::Preallocate(fd->get(), unfinished, bytes);
  Result<OpenedFile> file =
      reserved.ok() ? MapWhole(std::move(*fd), path, bytes) : Error(std::move(reserved));
  if (!file) {
    ::unlink(unfinished.c_str());
    return file;
  }
  fill(file->map.data());
  if (::rename(unfinished.c_str(), path.c_str()) != 0) {
    Status status(Code::kIoError, Text("rename ", unfinished, ": ", ErrnoText(errno)));
    ::unlink(unfinished.c_str());
    return Error(std::move(status));
  }
  return file;
}

// A file that something cut or punched would be a fault in every reader.
Status MakeWholeAgain(int fd, const std::string& path, std::uint64_t bytes) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return Status(Code::kIoError, Text(path, ": ", ErrnoText(errno)));
  if (static_cast<std::uint64_t>(info.st_blocks) * 512 >= bytes) return Status();
  return io::Preallocate(fd, path, bytes);
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

Result<ArenaFile> ArenaFile::Open(const ArenaOptions& options, const Clock& clock) {
  if (Status valid = options.Validate(); !valid.ok()) return Error(std::move(valid));
  ArenaFile file;
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
  return file;
}

Status ArenaFile::OpenArena(const ArenaOptions& options) {
  const std::string path = directory_ + "/arena";
  auto found = ReadHeader<arena::ArenaHeader>(path);
  if (!found) return std::move(found.error());
  if (!*found) {
    if (Status made = MakeArena(options, path); !made.ok()) return made;
  } else {
    auto& [fd, header] = **found;
    if (header.magic != arena::kArenaMagic) {
      return Status(Code::kMismatch, Text(path, ": is no arena of Cistern; ", kWayOut));
    }
    if (header.version != arena::kFormatVersion) {
      return Status(Code::kMismatch,
                    Text(path, ": has format version ", header.version, " and this node reads ",
                         arena::kFormatVersion, "; start the node that wrote it, or ", kWayOut));
    }
    geometry_ = {static_cast<std::uint32_t>(header.alignment),
                 static_cast<std::uint32_t>(header.header_count)};
    Result<std::uint64_t> size = io::FileSize(fd.get(), path);
    if (!size) return std::move(size.error());
    if (header.header_count > ~std::uint32_t{0} || !geometry_.valid() || *size != geometry_.file_bytes()) {
      return Status(Code::kMismatch,
                    Text(path, ": has ", *size, " bytes and its header says ", header.header_count,
                         " chunks with alignment ", header.alignment, ", so it was damaged; ", kWayOut));
    }
    if (Status whole = MakeWholeAgain(fd.get(), path, *size); !whole.ok()) return whole;
    Result<OpenedFile> opened = MapWhole(std::move(fd), path, *size);
    if (!opened) return std::move(opened.error());
    arena_map_ = std::move(opened->map);
    const arena::Geometry asked = arena::Geometry::Within(options.memory_bytes, options.alignment);
    if (asked != geometry_) {
      notes_.push_back(Text(path, " keeps the ", geometry_.file_bytes(), " bytes with alignment ",
                            geometry_.alignment, " that it was made with, and not the ", asked.file_bytes(),
                            " with ", asked.alignment,
                            " that were asked for; to change that, end the node and ", kWayOut));
    }
  }
  Result<Fd> read = io::OpenFile(path, io::OpenMode::kRead);
  if (!read) return std::move(read.error());
  arena_read_fd_ = std::move(*read);
  return Status();
}

Status ArenaFile::MakeArena(const ArenaOptions& options, const std::string& path) {
  geometry_ = arena::Geometry::Within(options.memory_bytes, options.alignment);
  Status room = CheckRoom(directory_, geometry_.file_bytes() + geometry_.index_bytes());
  if (!room.ok()) return room;
  Result<OpenedFile> made = MakeFile(path, geometry_.file_bytes(), [this](std::byte* base) {
    arena::ArenaHeader* header = arena::ArenaSpace(base, geometry_).header();
    header->magic = arena::kArenaMagic;
    header->version = arena::kFormatVersion;
    header->alignment = geometry_.alignment;
    header->header_count = geometry_.header_count;
  });
  if (!made) return std::move(made.error());
  arena_map_ = std::move(made->map);
  fresh_ = true;
  return Status();
}

Status ArenaFile::OpenIndex() {
  const std::string path = directory_ + "/index";
  auto found = ReadHeader<arena::IndexHeader>(path);
  if (!found) return std::move(found.error());
  const std::uint64_t bytes = geometry_.index_bytes();
  bool fits = false;
  if (*found) {
    auto& [fd, header] = **found;
    Result<std::uint64_t> size = io::FileSize(fd.get(), path);
    if (!size) return std::move(size.error());
    fits = header.magic == arena::kIndexMagic && header.version == arena::kFormatVersion &&
           header.bucket_count == geometry_.bucket_count() && *size == bytes;
  }
  // It is made from the arena at each start, so another one is made where it does not fit.
  // All of it is written at the start.
  Result<OpenedFile> opened = fits ? MapWhole(std::move((*found)->first), path, bytes, Pages::kAtOnce)
                                   : MakeFile(path, bytes, [this](std::byte* base) {
                                       arena::IndexHeader* header =
                                           arena::IndexSpace(base, geometry_.bucket_count()).header();
                                       header->magic = arena::kIndexMagic;
                                       header->version = arena::kFormatVersion;
                                       header->bucket_count = geometry_.bucket_count();
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
arena::IndexSpace ArenaFile::index() const { return {index_map_.data(), geometry_.bucket_count()}; }

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
  if (::access((directory + "/arena").c_str(), F_OK) != 0 &&
      ::access((directory + "/index").c_str(), F_OK) != 0) {
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
    Result<OpenedFile> map =
        MapWhole(std::move((*index)->first), directory + "/index", sizeof(arena::IndexHeader));
    if (!map) return Error(std::move(map.error()));
    arena::RealWords words;
    for (std::uint32_t i = 0; i < arena::kMaxNamespaces; ++i)
      arena::SetIncarnation(words, arena::IndexSpace(map->map.data(), 1), i, 0);
  }
  std::uint64_t freed = 0;
  for (const char* name : {"/arena", "/index", "/arena.new", "/index.new"}) {
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

FaultIn::FaultIn(arena::ArenaSpace arena) : arena_(arena), thread_([this] { Work(); }) {}

FaultIn::~FaultIn() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

void FaultIn::Work() {
  // In steps, so that the end of the node does not wait for gigabytes.
  static constexpr std::uint64_t kStep = 4u << 20;
  auto touch = [this](std::byte* from, std::uint64_t bytes) {
    auto address = reinterpret_cast<std::uintptr_t>(from);
    std::uint64_t before = address % arena::kUnitBytes;
    for (std::uint64_t at = 0; at < bytes && !stop_.load(std::memory_order_relaxed); at += kStep) {
      // Makes pages present without changing them. That it failed costs a slower first copy and nothing else.
      std::byte* step = from - before + at;
      const std::uint64_t step_bytes = std::min(kStep, bytes - at) + before;
      static_cast<void>(::madvise(step, step_bytes, MADV_POPULATE_WRITE));
      MoveIntoHugePages(step, step_bytes);
    }
  };
  const arena::Geometry& geometry = arena_.geometry();
  // The short runs of free headers at the end are carved first (FreeHeaders), each from its beginning.
  for (std::uint32_t end = geometry.header_count; end > 0; end &= end - 1) {
    for (std::uint32_t header = end & (end - 1); header < end; ++header) {
      if (stop_.load(std::memory_order_relaxed)) return;
      touch(reinterpret_cast<std::byte*>(arena_.header(header)), sizeof(arena::ChunkHeader));
      touch(arena_.slot(geometry.place(header * arena::kHeaderSpanBytes)), arena::kHeaderSpanBytes);
      done_.fetch_add(1, std::memory_order_relaxed);
    }
  }
}

}  // namespace cistern::memory
