// Builds the page into src/puna/server/page/dist: hashed assets, index.html and artifact.html. `--watch` builds anew
// when a source changes.
import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { cp, mkdir, readFile, rename, rm, rmdir, writeFile } from "node:fs/promises";
import { basename, dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import * as esbuild from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(here, "../src/puna/server/page/dist");
// Built beside and put in place at the end, so that a server never finds half a page.
const out = join(here, "dist", String(process.pid));
const watch = process.argv.includes("--watch");
const FIRST_LOAD_LIMIT = 300 * 1024;
const PACKED = /\.(css|js|json|svg|txt)$/;

const options = {
  absWorkingDir: here,
  bundle: true,
  format: "esm",
  target: ["es2022", "chrome109", "firefox115", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  metafile: true,
  legalComments: "none",
  charset: "utf8",
  logLevel: "warning",
  loader: { ".woff2": "file", ".svg": "file" },
};

// `import address from "some/file.css?file"`: the address of a file that is bundled on its own, for styles and
// workers which are loaded only when they are used.
function files(bundled) {
  return {
    name: "files",
    setup(build) {
      build.onResolve({ filter: /\?file$/ }, async (wanted) => {
        const found = await build.resolve(wanted.path.slice(0, -"?file".length), {
          kind: "import-statement",
          resolveDir: wanted.resolveDir,
        });
        return found.errors.length > 0 ? found : { path: found.path, namespace: "own-file" };
      });
      build.onLoad({ filter: /.*/, namespace: "own-file" }, async ({ path }) => {
        const built = await esbuild.build({
          ...options,
          entryPoints: [path],
          outdir: join(out, "assets"),
          entryNames: "[name]-[hash]",
          assetNames: "[name]-[hash]",
          plugins: [onlyWoff2],
        });
        bundled.push(built.metafile);
        const [name] = Object.entries(built.metafile.outputs).find(([, output]) => output.entryPoint);
        return {
          contents: `export default new URL(${JSON.stringify(basename(name))}, import.meta.url).href;`,
          loader: "js",
          watchFiles: [path],
        };
      });
    },
  };
}

// Every browser with modules reads WOFF2, so the other formats of KaTeX's fonts are left out.
const onlyWoff2 = {
  name: "only-woff2",
  setup(build) {
    build.onLoad({ filter: /katex.*\.css$/ }, async ({ path }) => ({
      contents: (await readFile(path, "utf8")).replaceAll(/,url\([^)]*\.(woff|ttf)\) format\("\w+"\)/g, ""),
      loader: "css",
    }));
  },
};

// Everything the browser fetches before the page is usable: the entry, its styles and its static imports.
function firstLoad(metafile, entry) {
  const seen = new Set();
  const visit = (name) => {
    if (seen.has(name)) return;
    seen.add(name);
    const output = metafile.outputs[name];
    if (output.cssBundle) visit(output.cssBundle);
    for (const each of output.imports) if (each.kind === "import-statement") visit(each.path);
  };
  visit(entry);
  return [...seen].map((name) => relative(out, resolve(here, name)).replaceAll("\\", "/"));
}

function packagesOf(metafiles) {
  const found = new Set();
  for (const metafile of metafiles) {
    for (const input of Object.keys(metafile.inputs)) {
      const match = /(?:^|:)(.*node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(input);
      if (match) found.add(match[2]);
    }
  }
  return [...found].sort();
}

function licences(names) {
  const texts = names.map((name) => {
    const folder = join(here, "node_modules", name);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const files = readdirSync(folder).filter((file) => /^(licen[cs]e|notice|copying)/i.test(file));
    const text = files.map((file) => readFileSync(join(folder, file), "utf8").trim()).join("\n\n");
    return `${name} ${about.version} (${about.license})\n${"-".repeat(72)}\n${text}\n`;
  });
  return `The page of Puna contains these packages.\n\n${texts.join("\n\n")}`;
}

const hashOf = (data) => createHash("sha256").update(data).digest("hex").slice(0, 8).toUpperCase();

async function pages(metafile, bundled) {
  const [entry] = Object.entries(metafile.outputs).find(
    ([name, each]) => name.endsWith(".js") && each.entryPoint === "src/main.tsx",
  );
  const first = firstLoad(metafile, entry);
  const icon = await readFile(join(here, "icon.svg"));
  const iconName = `assets/icon-${hashOf(icon)}.svg`;
  await writeFile(join(out, iconName), icon);
  const text = licences(packagesOf([metafile, ...bundled]));
  const licencesName = `assets/licenses-${hashOf(text)}.txt`;
  await writeFile(join(out, licencesName), text);
  const [script, ...rest] = first;
  const links = [
    `<link rel="icon" href="${iconName}" type="image/svg+xml">`,
    `<link rel="license" href="${licencesName}">`,
    ...rest.filter((name) => name.endsWith(".css")).map((name) => `<link rel="stylesheet" href="${name}">`),
    ...rest.filter((name) => name.endsWith(".js")).map((name) => `<link rel="modulepreload" href="${name}">`),
    `<script type="module" src="${script}"></script>`,
  ];
  const index = (await readFile(join(here, "index.html"), "utf8")).replace(
    "<!-- assets -->",
    links.join("\n"),
  );
  await writeFile(join(out, "index.html"), index);
  await writeFile(join(out, "artifact.html"), await readFile(join(here, "artifact.html")));
  return ["index.html", ...first, iconName];
}

// The server packs files when they are first asked for.
function packedBytes(name) {
  const data = readFileSync(join(out, name));
  return PACKED.test(name) ? gzipSync(data).length : data.length;
}

async function putInPlace() {
  const old = `${out}.old`;
  await mkdir(dirname(target), { recursive: true });
  await rename(target, old).catch(() => {});
  await rename(out, target).catch(() => cp(out, target, { recursive: true })); // a folder of another disk
  await rm(old, { recursive: true, force: true });
}

const bundled = [];

const finish = {
  name: "finish",
  setup(build) {
    build.onStart(async () => {
      bundled.length = 0;
      await rm(out, { recursive: true, force: true });
      await mkdir(join(out, "assets"), { recursive: true });
    });
    build.onEnd(async (result) => {
      if (result.errors.length > 0) return;
      const first = await pages(result.metafile, bundled);
      const bytes = first.reduce((sum, name) => sum + packedBytes(name), 0);
      await putInPlace();
      console.log(`first load: ${(bytes / 1024).toFixed(1)} KB gzipped of ${FIRST_LOAD_LIMIT / 1024} KB`);
      if (!watch && bytes > FIRST_LOAD_LIMIT) {
        console.error("the first load is too large: import what is not needed at once dynamically");
        process.exitCode = 1;
      }
    });
  },
};

if (!existsSync(join(here, "node_modules"))) {
  console.error("node_modules is missing: run `npm ci` in web/ first");
  process.exit(1);
}
const context = await esbuild.context({
  ...options,
  entryPoints: ["src/main.tsx"],
  outdir: join(out, "assets"),
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  assetNames: "[name]-[hash]",
  splitting: true,
  minify: !watch,
  sourcemap: watch ? "inline" : false,
  define: { "process.env.NODE_ENV": '"production"' },
  plugins: [files(bundled), onlyWoff2, finish],
});
if (watch) await context.watch();
else {
  await context.rebuild().catch(() => {
    process.exitCode = 1;
  });
  await context.dispose();
  await rm(out, { recursive: true, force: true });
  await rmdir(dirname(out)).catch(() => {}); // unless another build is at work there
}
