# SPDX-License-Identifier: Apache-2.0
# Precompiled headers of the sanitizers' build by clang: two fifths of its time are headers that every source reads
# again. Two of them, because one serves one level of optimisation: `standard` for what is tested, `test` for tests.
# The release build has none, so that an #include that a source lacks is found there.
#
# The compiler cache knows a precompiled header by FILE.sum, a sum over what was precompiled, which is the same in
# each clone; the file itself holds absolute paths.

# cistern_precompile(NAME OPTIMISATION FLAG...)
function(cistern_precompile name optimisation)
  set(header ${PROJECT_SOURCE_DIR}/cmake/precompiled/${name}.h)
  set(out ${PROJECT_BINARY_DIR}/precompiled/${name}.pch)
  get_directory_property(options COMPILE_OPTIONS)
  separate_arguments(flags UNIX_COMMAND "${CMAKE_CXX_FLAGS} -std=c++2b ${optimisation}")
  set(compile ${CMAKE_CXX_COMPILER} ${flags} ${options} ${ARGN} -x c++-header ${header})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/precompiled)
  list(JOIN compile " " line)
  add_custom_command(OUTPUT ${out}
    COMMAND ${compile} -o ${out} -Xclang -fno-pch-timestamp -fpch-instantiate-templates -MD -MF ${out}.d -MT ${out}
    COMMAND sh -c "{ echo '${CMAKE_CXX_COMPILER_VERSION}'; ${line} -E -P; } | sha256sum > ${out}.sum"
    DEPFILE ${out}.d DEPENDS ${header} COMMENT "Precompiling ${name}.h" VERBATIM)
  add_custom_target(precompiled_${name} DEPENDS ${out})
endfunction()

# cistern_precompiled(TARGET NAME): TARGET's sources begin with the precompiled header NAME, where there is one.
function(cistern_precompiled target name)
  if(TARGET precompiled_${name})
    set(file ${PROJECT_BINARY_DIR}/precompiled/${name}.pch)
    get_target_property(sources ${target} SOURCES)
    list(FILTER sources EXCLUDE REGEX "_(avx2|vpclmulqdq|avx512|avx512_lanes|arm64)\\.cc$")
    set_property(SOURCE ${sources} APPEND PROPERTY OBJECT_DEPENDS ${file})
    set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS -Xclang -include-pch -Xclang ${file})
    add_dependencies(${target} precompiled_${name})
  endif()
endfunction()

if(CISTERN_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-fPIE)  # a header is precompiled for libraries and programs alike
  cistern_precompile(standard -O1)
  cistern_precompile(test -O0 -DGTEST_HAS_PTHREAD=1)  # as GTest::gtest has it
endif()
