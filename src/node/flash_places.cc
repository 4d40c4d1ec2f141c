// SPDX-License-Identifier: Apache-2.0
#include "node/flash_places.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/format.h"
#include "base/nearest.h"
#include "base/units.h"
#include "flash/format.h"
#include "flash/open.h"
#include "io/files.h"
#include "memory/host_memory.h"

namespace cistern::node {
namespace {

enum class What : std::uint8_t { kDirectory, kBlockDevice };

// What tells a directory or a device from all others of this host.
struct Identity {
  What what = What::kDirectory;
  std::uint64_t device = 0, inode = 0;
  friend bool operator==(const Identity&, const Identity&) = default;
};

// A volume: as it was found, or why it cannot be looked at, as where its drive is gone.
struct Volume {
  Identity identity = {};
  Status absent = {};
};

Status WithWayOut(const Status& absent, std::string_view way_out) {
  return Status(Code::kInvalid, Text(absent.message(), "; ", way_out));
}

constexpr std::string_view kMakeIt = "make it, or name another";

// kMiss: there is nothing that could be looked at.
Result<Identity> Look(std::string_view field, const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0)
    return Error(Code::kMiss, Text(field, ": ", ShownPath(path), ": ", ErrnoText(errno)));
  if (S_ISDIR(info.st_mode)) return Identity{What::kDirectory, info.st_dev, info.st_ino};
  if (S_ISBLK(info.st_mode)) return Identity{What::kBlockDevice, info.st_rdev, 0};
  return Error(Code::kInvalid, Text(field, ": ", ShownPath(path),
                                    " is neither a directory nor a block device; ", "name one of these"));
}

// The same of what is needed: what is not there is refused with the way out.
Result<Identity> LookAtNeeded(std::string_view field, const std::string& path) {
  Result<Identity> found = Look(field, path);
  if (!found && found.error().code() == Code::kMiss) return Error(WithWayOut(found.error(), kMakeIt));
  return found;
}

Status CheckWritable(std::string_view field, const std::string& path) {
  if (::access(path.c_str(), R_OK | W_OK) == 0) return Status();
  const int error = errno;
  return Status(Code::kIoError,
                Text(field, ": ", ShownPath(path), ": ", ErrnoText(error),
                     error == EROFS ? "; mount it for writing, or name another"
                                    : "; give this user the right to write there, or name another"));
}

Result<Volume> CheckVolume(const FlashVolume& volume) {
  Result<Identity> found = Look("flash", volume.path);
  if (!found && found.error().code() == Code::kMiss) return Volume{.absent = found.error()};
  if (!found) return Error(found.error());
  if (found->what == What::kDirectory && volume.size_bytes == 0) {
    return Error(Code::kInvalid, Text("flash: ", volume.path,
                                      " is a directory, of which a node takes only what "
                                      "it is given; say how much, as in ",
                                      volume.path, ":100GiB"));
  }
  if (Status status = CheckWritable("flash", volume.path); !status.ok()) return Error(std::move(status));
  return Volume{.identity = *found};
}

// Of a volume that cannot be looked at, by its name.
bool IsNamedAsDevice(const std::string& path) {
  return path.starts_with("/dev/") && !path.starts_with("/dev/shm/");
}

// The directory, not yet the tenant's, in which the journal goes; empty: the one of memory.
Result<std::string> JournalParent(const NodeOptions& options, const std::vector<Volume>& volumes) {
  if (options.journal_dir.empty()) {
    for (std::size_t i = 0; i < volumes.size(); ++i) {
      const bool absent = !volumes[i].absent.ok();
      if (absent && !IsNamedAsDevice(options.flash[i].path))
        return Error(WithWayOut(volumes[i].absent, kMakeIt));
      if (!absent && volumes[i].identity.what == What::kDirectory) return options.flash[i].path;
    }
    if (volumes.empty()) return std::string();
    const auto absent = std::ranges::find_if(volumes, [](const Volume& one) { return !one.absent.ok(); });
    if (absent != volumes.end()) return Error(WithWayOut(absent->absent, kMakeIt));
    return Error(Code::kInvalid,
                 "journal_dir: all flash is block devices, and the journal that they need is a file; name a "
                 "durable directory for it with --journal-dir DIR");
  }
  Result<Identity> found = LookAtNeeded("journal_dir", options.journal_dir);
  if (!found) return Error(found.error());
  if (found->what != What::kDirectory) {
    return Error(Code::kInvalid, Text("journal_dir: ", options.journal_dir, " is no directory; name one"));
  }
  if (Status status = CheckWritable("journal_dir", options.journal_dir); !status.ok()) {
    return Error(std::move(status));
  }
  return options.journal_dir;
}

std::string TenantDirectory(const NodeOptions& options, const std::string& parent) {
  return Text(parent, "/", options.tenant);
}

Status FindOwnDirectory(std::string_view field, const std::string& path, FindsFor what) {
  return what == FindsFor::kCheck ? io::CheckOwnDirectory(field, path) : io::MakeOwnDirectory(field, path);
}

// 0 where it cannot be opened: the tier says why.
std::uint64_t BlockDeviceBytes(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const off_t end = fd.valid() ? ::lseek(fd.get(), 0, SEEK_END) : 0;
  return end > 0 ? static_cast<std::uint64_t>(end) : 0;
}

Status CannotOpen(const std::string& device, int error) {
  return Status(
      error == EBUSY ? Code::kBusy : Code::kIoError,
      Text("flash: ", device, ": ", ErrnoText(error),
           error == EBUSY ? ": it is mounted, or another node or program has it; name another" : ""));
}

bool HasJournal(const std::string& directory) {
  return std::ranges::any_of(std::array{"/journal", "/journal.copy"}, [&](const char* file) {
    return ::access(Text(directory, file).c_str(), F_OK) == 0 || errno != ENOENT;
  });
}

// Of flash that is there, by the first superblock that can be read; 0: there is none. What is made anew
// beside it has regions of the same size. Without its journal none is believed.
std::uint64_t RegionBytesThere(const FlashPlaces& places) {
  if (!places.journal_directory.empty() && !HasJournal(places.journal_directory)) return 0;
  for (const flash::FlashDeviceOptions& device : places.devices) {
    Fd fd(::open((device.path + "/flash").c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) fd = Fd(::open(device.path.c_str(), O_RDONLY | O_CLOEXEC));
    std::array<std::byte, flash::kSectorBytes> sector;
    const ssize_t n = fd.valid() ? ::pread(fd.get(), sector.data(), sector.size(), 0) : -1;
    if (n != static_cast<ssize_t>(sector.size())) continue;
    if (const auto superblock = flash::DecodeSuperblock(sector)) return superblock->region_bytes;
  }
  return 0;
}

bool Same(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return a == b || std::filesystem::equivalent(a, b, ignored);
}

}  // namespace

Result<FlashPlaces> FindFlashPlaces(const NodeOptions& options, FindsFor what) {
  std::vector<Volume> found;
  for (std::size_t i = 0; i < options.flash.size(); ++i) {
    Result<Volume> one = CheckVolume(options.flash[i]);
    if (!one) return Error(one.error());
    for (std::size_t j = 0; j < i && one->absent.ok(); ++j) {
      if (!found[j].absent.ok() || found[j].identity != one->identity) continue;
      return Error(Code::kInvalid, Text("flash: ", options.flash[j].path, " and ", options.flash[i].path,
                                        " are the same; name it once"));
    }
    found.push_back(std::move(*one));
  }
  Result<std::string> parent = JournalParent(options, found);
  if (!parent) return Error(parent.error());
  // A node that has had flash starts without the drives that are gone; one that has not has misspelt them.
  FlashPlaces places;
  places.had_flash = !parent->empty() && HasJournal(TenantDirectory(options, *parent));
  for (const Volume& volume : found) {
    if (!volume.absent.ok() && !places.had_flash) return Error(WithWayOut(volume.absent, kMakeIt));
  }

  for (std::size_t i = 0; i < found.size(); ++i) {
    std::string path = options.flash[i].path;
    if (!found[i].absent.ok()) {
      if (!IsNamedAsDevice(path)) path = TenantDirectory(options, path);
    } else if (found[i].identity.what == What::kDirectory) {
      path = TenantDirectory(options, path);
      if (Status status = FindOwnDirectory("flash", path, what); !status.ok())
        return Error(std::move(status));
      // A link may stand in a tenant's place.
      for (std::size_t j = 0; j < i; ++j) {
        if (!Same(places.devices[j].path, path)) continue;
        return Error(Code::kInvalid,
                     Text("flash: ", places.devices[j].path, " and ", path, " are the same; name it once"));
      }
    }
    places.bytes += options.flash[i].size_bytes > 0 ? options.flash[i].size_bytes : BlockDeviceBytes(path);
    places.devices.push_back({.path = std::move(path),
                              .size_bytes = options.flash[i].size_bytes,
                              .absent = std::move(found[i].absent)});
  }
  if (parent->empty() || Same(*parent, options.memory_dir)) return places;
  places.journal_directory = TenantDirectory(options, *parent);
  if (Status status = FindOwnDirectory("journal_dir", places.journal_directory, what); !status.ok()) {
    return Error(std::move(status));
  }
  return places;
}

Status CheckDevice(const FlashPlaces& places, std::size_t at) {
  const auto bytes_of = [](const flash::FlashDeviceOptions& device) {
    return device.size_bytes > 0 ? device.size_bytes : BlockDeviceBytes(device.path);
  };
  const flash::FlashDeviceOptions& device = places.devices[at];
  if (!device.absent.ok()) return WithWayOut(device.absent, "the node starts without it");
  struct stat info;
  const bool block_device = ::stat(device.path.c_str(), &info) == 0 && S_ISBLK(info.st_mode);
  if (block_device && !Fd(::open(device.path.c_str(), O_RDONLY | O_CLOEXEC)).valid())
    return CannotOpen(device.path, errno);
  std::uint64_t smallest = UINT64_MAX;
  for (const auto& one : places.devices) {
    if (one.absent.ok()) smallest = std::min(smallest, bytes_of(one));
  }
  const std::uint64_t there = RegionBytesThere(places);
  const Status size =
      flash::CheckBytes(device.path, bytes_of(device), there != 0 ? there : flash::RegionBytesFor(smallest),
                        block_device ? std::optional(BlockDeviceBytes(device.path)) : std::nullopt);
  if (!size.ok() || block_device) return size;
  const std::string file = device.path + "/flash";
  if (::stat(file.c_str(), &info) == 0 && static_cast<std::uint64_t>(info.st_size) >= device.size_bytes)
    return Status();
  const Status room = io::CheckRoom(file, device.size_bytes);
  return room.ok() ? room : Status(room.code(), Text("flash device ", device.path, ": ", room.message()));
}

std::vector<Lost> LostAtReboot(const NodeOptions& options, const FlashPlaces& places) {
  std::vector<Lost> lost;
  for (const FlashVolume& volume : options.flash) {
    if (!io::LiesInMemory(volume.path)) continue;
    lost.push_back({Text("flash: ", volume.path, " lies in memory, on a tmpfs or ramfs: a reboot loses it"),
                    "name a directory on a disk, or a block device"});
  }
  const std::string journal = places.journal_directory.empty() ? TenantDirectory(options, options.memory_dir)
                                                               : places.journal_directory;
  if (!options.flash.empty() && io::LiesInMemory(journal)) {
    lost.push_back(
        {Text(
             "journal_dir: ", journal,
             " lies in memory, on a tmpfs or ramfs: a reboot loses it, and flash is not believed without it"),
         "name a directory on a disk"});
  }
  return lost;
}

Result<Fd> ClaimDevice(const FlashVolume& volume, const flash::FlashDeviceOptions& device) {
  Result<Identity> what = LookAtNeeded("flash", volume.path);
  if (!what) return Error(what.error());
  if (what->what == What::kDirectory) {
    if (Status status = io::MakeOwnDirectory("flash", device.path); !status.ok())
      return Error(std::move(status));
    return Fd();
  }
  Fd claim(::open(device.path.c_str(), O_RDONLY | O_EXCL | O_CLOEXEC));
  if (claim.valid()) return claim;
  return Error(CannotOpen(device.path, errno));
}

std::uint32_t LowerBlocksOf(std::uint64_t flash_bytes, std::uint32_t alignment, std::uint64_t host_bytes) {
  const std::uint64_t smallest = 2 * std::uint64_t{alignment};  // a body and its seal
  return static_cast<std::uint32_t>(
      std::min<std::uint64_t>({flash_bytes / smallest, host_bytes / 8 / kLowerEntryBytes, UINT32_MAX / 2}));
}

std::uint32_t MaxLowerBlocks(const FlashPlaces& places, std::uint32_t alignment) {
  if (places.devices.empty()) return 0;
  const Result<memory::HostMemory> memory = memory::ReadHostMemory();
  return LowerBlocksOf(places.bytes, alignment, memory ? memory->limit_bytes : UINT64_MAX);
}

std::optional<std::size_t> DeviceNamed(const NodeOptions& options, const FlashPlaces& places,
                                       const std::string& path) {
  for (std::size_t i = 0; i < places.devices.size(); ++i) {
    if (path == places.devices[i].path || path == options.flash[i].path) return i;
  }
  return std::nullopt;
}

Result<std::size_t> FindDevice(const NodeOptions& options, const FlashPlaces& places,
                               const std::string& path) {
  for (std::size_t i = 0; i < places.devices.size(); ++i) {
    if (Same(path, options.flash[i].path) || Same(path, places.devices[i].path)) return i;
  }
  const std::string known = Joined(options.flash, ", ", &FlashVolume::path);
  return Error(Code::kMiss,
               Text("this node has no flash ", ShownPath(path), known.empty() ? "" : "; it has ", known));
}

Status CheckFlashQuotas(const NodeOptions& options, const FlashPlaces& places) {
  const policy::QuotaTable quotas(options.quotas);
  if (!quotas.of_flash()) return Status();
  if (places.devices.empty()) {
    const auto found = std::ranges::find_if(options.quotas, &policy::Quota::of_flash);
    return Status(Code::kInvalid, Text("quota: ", policy::ToString(*found),
                                       " is of flash, and this node has none; give it some (flash), or leave "
                                       "the quota's flash and flash_reserve out"));
  }
  if (quotas.flash_reserved_bytes() <= places.bytes / 2) return Status();
  return Status(Code::kInvalid,
                Text("quota: the reserves of flash are ", SizeText(quotas.flash_reserved_bytes()),
                     " together and flash is ", RoughSizeText(places.bytes),
                     ", of which half may be reserved; reserve less, or give the node more flash"));
}

}  // namespace cistern::node
