/** The address of a file that is bundled on its own: build.mjs. */
declare module "*?file" {
  const address: string;
  export default address;
}

declare module "*.css";
