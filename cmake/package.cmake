# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` leaves: include/cistern/, one static library with every folder that src/api stands
# on, and a package, so that `find_package(cistern)` and `target_link_libraries(x cistern::cistern)` do.

include(CMakePackageConfigHelpers)

# cistern_closure(FOLDER OUT): FOLDER and all that it stands on.
function(cistern_closure folder out)
  set(closure ${folder})
  set(todo ${folder})
  while(todo)
    list(POP_FRONT todo here)
    cistern_arrows(${here} below)
    list(REMOVE_ITEM below ${closure})
    list(APPEND closure ${below})
    list(APPEND todo ${below})
  endwhile()
  set(${out} ${closure} PARENT_SCOPE)
endfunction()

function(cistern_package)
  cistern_closure(api folders)
  set(objects "")
  set(libraries "")
  foreach(folder IN LISTS folders)
    get_target_property(type cistern_${folder} TYPE)
    if(type STREQUAL STATIC_LIBRARY)
      list(APPEND objects $<TARGET_OBJECTS:cistern_${folder}>)
    endif()
    list(APPEND libraries ${CISTERN_LIBS_${folder}})
  endforeach()
  list(REMOVE_DUPLICATES libraries)
  add_library(cistern STATIC ${objects})
  target_include_directories(cistern INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(cistern INTERFACE cxx_std_23)
  target_link_libraries(cistern PRIVATE ${libraries})  # the public headers name none of them
  set_target_properties(cistern PROPERTIES LINKER_LANGUAGE CXX)

  set(where ${CMAKE_INSTALL_LIBDIR}/cmake/cistern)
  install(TARGETS cistern EXPORT cistern ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cistern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
  install(EXPORT cistern NAMESPACE cistern:: DESTINATION ${where} FILE cisternTargets.cmake COMPONENT development)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/cisternConfig.cmake.in
    ${PROJECT_BINARY_DIR}/cisternConfig.cmake INSTALL_DESTINATION ${where})
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/cisternConfigVersion.cmake
    VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/cisternConfig.cmake ${PROJECT_BINARY_DIR}/cisternConfigVersion.cmake
    DESTINATION ${where} COMPONENT development)

  # The example is built as a stranger builds it: against an installed package, nothing of this tree.
  if(BUILD_TESTING AND NOT CISTERN_SANITIZE AND EXISTS ${PROJECT_SOURCE_DIR}/examples/CMakeLists.txt)
    add_test(NAME package/example COMMAND ${CMAKE_COMMAND}
      -D BUILD=${PROJECT_BINARY_DIR} -D EXAMPLES=${PROJECT_SOURCE_DIR}/examples
      -D COMPILER=${CMAKE_CXX_COMPILER}
      -P ${PROJECT_SOURCE_DIR}/cmake/package_test.cmake)
    set_tests_properties(package/example PROPERTIES LABELS package TIMEOUT 1200)
  endif()
endfunction()
