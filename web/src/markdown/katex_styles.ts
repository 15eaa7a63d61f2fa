export { default } from "katex/dist/katex.min.css?file";
